//! What the log and the traces say of a call.

use std::time::Duration;

use cabana_model::{CallId, Outcome, SandboxId, Tenant};
use tracing::{Span, error_span, field};

use crate::{Metrics, fault_lines, sandboxes::Slot};

/// Around all that is done for a call: what is said there is about it. Kept at every level of the log.
pub(crate) fn span(verb: &str, call: CallId, tenant: &Tenant, slot: Option<&Slot>) -> Span {
    let record = slot.map(Slot::record);
    span_in(verb, call, tenant, record.as_ref().map(|record| &record.id))
}

pub(crate) fn span_in(verb: &str, call: CallId, tenant: &Tenant, sandbox: Option<&SandboxId>) -> Span {
    let sandbox = sandbox.map(field::display);
    error_span!("call", verb, %call, %tenant, sandbox, outcome = field::Empty, error.type = field::Empty)
}

/// A call has its outcome, and its row if it leaves one. Within its span.
pub(crate) fn recorded(metrics: &Metrics, tenant: &Tenant, verb: &str, outcome: &Outcome, spent: Duration) {
    metrics.recorded(tenant, verb, outcome, spent);
    let (span, ms) = (Span::current(), spent.as_millis() as u64);
    match outcome {
        Outcome::Failed { code, message } => {
            span.record("error.type", code.as_str());
            match fault_lines::admit(*code) {
                Some(unsaid) => {
                    tracing::error!(code = code.as_str(), error = message, ms, unsaid, "a call failed");
                }
                None if code.is_fault() => tracing::debug!(code = code.as_str(), error = message, ms, "a call failed"),
                None => tracing::debug!(code = code.as_str(), ms, "a call was refused"),
            }
        }
        outcome => {
            span.record("outcome", outcome.as_str());
            tracing::debug!(outcome = outcome.as_str(), ms, "a call has ended");
        }
    }
}
