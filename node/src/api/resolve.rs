//! `POST /api/v1/tasks/{id}/resolve`: an operator decides about a step in doubt.

use std::sync::Arc;

use axum::{
    Extension, Json,
    extract::{Path, State, rejection::JsonRejection},
    response::{IntoResponse, Response},
};
use http::StatusCode;
use serde::Deserialize;
use serde_json::json;
use towline_cluster::ProposeError;
use towline_core::{Command, Proposal, Rejection, Resolve, StepNo, Task, Verdict};
use towline_trace::{Kind, Span, names};

use super::{Api, ApiError, invalid, task_id, unknown_task};
use crate::a2a::principal::Caller;

/// The route, which is also the name of the span.
pub(super) const ROUTE: &str = "/api/v1/tasks/{id}/resolve";

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Decision {
    /// None means the only step in doubt.
    step: Option<StepNo>,
    r#as: Word,
    result: Option<String>,
    reason: Option<String>,
}

#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Word {
    Done,
    Retry,
    Failed,
}

impl Decision {
    fn verdict(self) -> Result<Verdict, ApiError> {
        match (self.r#as, self.result, self.reason) {
            (Word::Done, Some(result), None) => Ok(Verdict::Done { result }),
            (Word::Done, None, None) => {
                let text = "result is missing: what the step came to, which the model goes on with; an empty one means nothing";
                Err(invalid(text.to_owned()))
            }
            (Word::Retry, None, None) => Ok(Verdict::Retry),
            (Word::Failed, None, reason) => Ok(Verdict::Failed { reason: reason.unwrap_or_default() }),
            (Word::Done | Word::Retry, _, Some(_)) => Err(invalid("reason is for as = failed".to_owned())),
            (Word::Retry | Word::Failed, Some(_), _) => Err(invalid("result is for as = done".to_owned())),
        }
    }
}

pub(super) async fn resolve(
    State(api): State<Arc<Api>>,
    Path(id): Path<String>,
    Extension(caller): Extension<Caller>,
    body: Result<Json<Decision>, JsonRejection>,
) -> Result<Response, ApiError> {
    let task = task_id(&id)?;
    let Json(decision) = body.map_err(|error| invalid(error.body_text()))?;
    let step = decision.step;
    let verdict = decision.verdict()?;
    let word = verdict.word();
    let trace = api.cluster.task(task).await?.map(|task| task.trace);
    let mut span = Span::child(format!("POST {ROUTE}"), Kind::Server, &trace.ok_or_else(|| unknown_task(task))?);
    span.set(names::A2A_TASK_ID, task.to_string());
    let request = uuid::Uuid::now_v7();
    let resolve = Resolve { request, task, step, verdict, trace: span.context() };
    let proposal = Proposal { by: caller.principal, command: Command::Resolve(Box::new(resolve)) };
    if let Err(error) = api.cluster.propose(proposal, Some(&span.context())).await {
        span.fail(names::error::UNAVAILABLE, &error.to_string());
        return Err(refused(error));
    }
    let found = api.cluster.local_task(task).await?;
    found
        .map(|task| shown(&task, request, word))
        .map(|answer| Json(answer).into_response())
        .ok_or_else(|| unknown_task(task))
}

fn shown(task: &Task, request: uuid::Uuid, word: &str) -> serde_json::Value {
    let settled = |step: &&towline_core::Step| step.resolved.as_ref().is_some_and(|done| done.request == request);
    let in_doubt: Vec<StepNo> = task.doubtful_steps().map(|step| step.no).collect();
    json!({
        "task": task.id.to_string(),
        "step": task.journal.iter().find(settled).map(|step| step.no),
        "as": word,
        "state": towline_a2a::convert::state_name(task.status.state),
        "in_doubt": in_doubt,
    })
}

/// A refusal of the core with a code for programs.
#[expect(clippy::wildcard_enum_match_arm, reason = "no other rejection answers this command")]
fn refused(error: ProposeError) -> ApiError {
    let ProposeError::Rejected(rejection) = &error else { return error.into() };
    let code = match rejection {
        Rejection::UnknownTask { task } => return unknown_task(*task),
        Rejection::NotInDoubt { .. } => "not_in_doubt",
        Rejection::StepNotInDoubt { .. } => "step_not_in_doubt",
        Rejection::SeveralInDoubt { .. } => "several_in_doubt",
        Rejection::TooLarge { .. } => "too_large",
        _ => return error.into(),
    };
    ApiError::new(StatusCode::CONFLICT, code, rejection.to_string())
}
