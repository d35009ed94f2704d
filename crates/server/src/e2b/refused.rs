//! Errors as E2B's clients know them: of the control plane, of the agent's calls, and of a sandbox that nobody reaches.

use axum::{
    Json,
    http::{HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use cabana_e2b_wire::{connect, control::ApiError, files::Unreachable};
use cabana_runtime::{Code, Error, SandboxId};

use crate::error::{Refused as Ours, shortened};

/// Of the control plane, and of what is plain HTTP.
#[derive(Debug)]
pub(super) struct Refused {
    status: StatusCode,
    message: String,
    error_code: Option<&'static str>,
}

impl Refused {
    pub(super) fn new(status: StatusCode, message: impl Into<String>) -> Self {
        Self { status, message: message.into(), error_code: None }
    }

    /// For whoever tells it elsewhere.
    pub(super) fn into_message(self) -> String {
        self.message
    }

    pub(super) fn bad(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, message)
    }

    pub(super) fn not_found(message: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, message)
    }

    pub(super) fn message(&self) -> &str {
        &self.message
    }
}

impl From<Refused> for ApiError {
    fn from(refused: Refused) -> Self {
        let Refused { status, message, error_code } = refused;
        Self { error_code: error_code.map(str::to_owned), ..Self::new(status.as_u16(), shortened(message)) }
    }
}

impl From<Error> for Refused {
    fn from(error: Error) -> Self {
        Ours::from(error).into()
    }
}

/// With our own code beside the status, for whoever looks it up.
impl From<Ours> for Refused {
    fn from(ours: Ours) -> Self {
        ours.told().into()
    }
}

impl From<(StatusCode, Code, String)> for Refused {
    fn from((status, code, message): (StatusCode, Code, String)) -> Self {
        // What E2B's clients call so.
        let status = match (code, status) {
            (Code::SandboxPaused, _) => StatusCode::CONFLICT,
            (Code::IdempotencyMismatch, _) => StatusCode::UNPROCESSABLE_ENTITY,
            (_, StatusCode::UNPROCESSABLE_ENTITY) => StatusCode::BAD_REQUEST,
            _ => status,
        };
        Self { status, message, error_code: Some(code.as_str()) }
    }
}

impl IntoResponse for Refused {
    fn into_response(self) -> Response {
        let status = self.status;
        let mut response = (status, Json(ApiError::from(self))).into_response();
        if matches!(status, StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE) {
            response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
        }
        response
    }
}

/// There is no such sandbox, nothing listens in it, or it is not open to whoever asks.
#[derive(Debug)]
pub(super) struct Unreached(Unreachable);

impl Unreached {
    pub(super) fn gone(sandbox: &SandboxId) -> Self {
        Self(Unreachable::gone(theirs(sandbox)))
    }

    pub(super) fn closed(sandbox: &SandboxId, port: u16) -> Self {
        Self(Unreachable::closed(theirs(sandbox), port))
    }

    /// Its ports ask for a token. Whether one was shown is told, and whether it was the right one for something else is not.
    pub(super) fn closed_to_public(sandbox: &SandboxId, shown: bool) -> Self {
        Self(if shown { Unreachable::wrong_token(theirs(sandbox)) } else { Unreachable::no_token(theirs(sandbox)) })
    }
}

/// Every id of ours that this front gave out is one of theirs; what is none was never there.
fn theirs(sandbox: &SandboxId) -> cabana_e2b_wire::SandboxId {
    sandbox.as_str().parse().unwrap_or_else(|_| nobody())
}

fn nobody() -> cabana_e2b_wire::SandboxId {
    match "none".parse() {
        Ok(id) => id,
        Err(_) => unreachable!("it is a plain name"),
    }
}

impl IntoResponse for Unreached {
    fn into_response(self) -> Response {
        let status = StatusCode::from_u16(self.0.code).unwrap_or(StatusCode::BAD_GATEWAY);
        (status, Json(self.0)).into_response()
    }
}

/// Of the agent's calls.
pub(super) fn connect_error(error: &Error) -> connect::Error {
    use connect::Code as C;
    let code = match error.code() {
        Code::NotFound | Code::SandboxNotFound | Code::TaskNotFound | Code::CallNotFound => C::NotFound,
        Code::AlreadyExists => C::AlreadyExists,
        Code::Unauthorized | Code::UnknownUser => C::Unauthenticated,
        Code::Forbidden | Code::PermissionDenied | Code::MountDenied => C::PermissionDenied,
        Code::QuotaExceeded
        | Code::RateLimited
        | Code::ServerBusy
        | Code::TooManyStreams
        | Code::TooManySearches
        | Code::TooManyWatches
        | Code::NoSpace
        | Code::TooLarge => C::ResourceExhausted,
        Code::TimedOut => C::DeadlineExceeded,
        Code::Cancelled => C::Canceled,
        Code::BadRequest
        | Code::InvalidPath
        | Code::IsDirectory
        | Code::NotDirectory
        | Code::NotRegular
        | Code::ProgramNotFound
        | Code::WorkdirNotFound
        | Code::NotEmpty
        | Code::TooManyLinks => C::InvalidArgument,
        Code::Unsupported => C::Unimplemented,
        Code::Draining
        | Code::HostExhausted
        | Code::ProviderOffline
        | Code::StoreUnavailable
        | Code::SandboxGone
        | Code::SandboxRecovering => C::Unavailable,
        Code::FileBusy | Code::MountBusy | Code::SandboxBusy | Code::LeaseLost | Code::SandboxPaused => {
            C::FailedPrecondition
        }
        _ => C::Internal,
    };
    connect::Error::new(code, error.to_string())
}
