//! Messages of the gRPC binding as ProtoJSON, and back: so all bindings share what is behind them.

use a2a_pb::protojson_conv::ProtoJsonPayload;
use prost::Message as _;
use serde_json::Value;

use super::Field;
use crate::WireError;

/// The parameters that a protobuf request stands for.
///
/// # Errors
/// When it holds what JSON cannot say, such as a number that is none.
pub fn params_of<T: ProtoJsonPayload>(request: &T::Proto) -> Result<Value, WireError> {
    let wrong = |error: String| WireError::from(Field::new("request", error));
    let json = T::ProtoJson::decode(request.encode_to_vec().as_slice()).map_err(|error| wrong(error.to_string()))?;
    serde_json::to_value(json).map_err(|error| wrong(error.to_string()))
}

/// The protobuf message of a result.
///
/// # Errors
/// When it is not one: a bug.
pub fn result_to<T: ProtoJsonPayload>(result: Value) -> Result<T::Proto, WireError> {
    let json: T::ProtoJson = serde_json::from_value(result).map_err(WireError::internal)?;
    T::Proto::decode(json.encode_to_vec().as_slice()).map_err(WireError::internal)
}
