//! A person logs this node in at a server, from the operator's side.

use super::{AuthError, BegunLogin, ConnectionMsg, DeviceLogin, McpHandle, credentials::Authorizer};

impl McpHandle {
    fn authorizer(&self) -> Result<&Authorizer, AuthError> {
        self.credentials.authorizer().ok_or_else(|| {
            let name = self.name();
            AuthError::Failed(format!("MCP server {name:?} is configured without oauth: nobody logs in there"))
        })
    }

    /// Begins a login in a browser, which comes back to an address of the person's machine.
    ///
    /// # Errors
    /// When the server is configured without OAuth, or its authorization server cannot be used.
    pub async fn begin_login(&self, redirect: &str) -> Result<BegunLogin, AuthError> {
        self.authorizer()?.begin(redirect).await
    }

    /// Ends it with what the browser brought back, and connects.
    ///
    /// # Errors
    /// When there is no such login, or no token for it.
    pub async fn finish_login(&self, state: &str, code: &str, issuer: Option<&str>) -> Result<(), AuthError> {
        self.authorizer()?.finish(state, code, issuer).await?;
        self.connect_now();
        Ok(())
    }

    /// Begins a login with a code.
    ///
    /// # Errors
    /// When the server is configured without OAuth, or its authorization server has none.
    pub async fn begin_device_login(&self) -> Result<DeviceLogin, AuthError> {
        self.authorizer()?.begin_device().await
    }

    /// Asks once whether it was done; if so, connects.
    ///
    /// # Errors
    /// [`AuthError::Pending`] as long as it was not; else when it was refused.
    pub async fn poll_login(&self, state: &str) -> Result<(), AuthError> {
        self.authorizer()?.poll(state).await?;
        self.connect_now();
        Ok(())
    }

    fn connect_now(&self) {
        // A stopped actor connects no more; one that is connected does nothing.
        let _ = self.actor.cast(ConnectionMsg::Connect);
    }
}
