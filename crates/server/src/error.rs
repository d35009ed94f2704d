//! Errors as clients hear them.

use axum::{
    Json,
    extract::rejection::{JsonRejection, PathRejection, QueryRejection},
    http::{HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use cabana_runtime::{BOUNDLESS, CallId, Code, Error, fault_lines};
use serde::Serialize;
use serde_json::{Value, json};
use utoipa::ToSchema;

pub(crate) type Answer<T> = Result<T, Refused>;

/// A request that was not done.
#[derive(Clone, Debug)]
pub(crate) struct Refused {
    status: StatusCode,
    code: Code,
    message: String,
    details: Option<Value>,
    call: Option<CallId>,
}

/// What went wrong.
#[derive(Serialize, ToSchema)]
pub(crate) struct ErrorBody {
    error: ErrorInfo,
}

#[derive(Serialize, ToSchema)]
struct ErrorInfo {
    /// Stable; each has a page in the documentation.
    #[schema(example = "sandbox_not_found")]
    code: &'static str,
    message: String,
    /// What to do about it.
    hint: &'static str,
    docs: String,
    /// Numbers behind the message, where there are some: of a quota `quota`, `limit`, `used` and `wanted`.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<Object>)]
    details: Option<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    call_id: Option<CallId>,
    /// Whether the same request may do better later.
    retryable: bool,
}

impl Refused {
    pub(crate) fn new(code: Code, message: impl Into<String>) -> Self {
        Self { status: status(code), code, message: message.into(), details: None, call: None }
    }

    pub(crate) fn invalid(field: &str, why: impl std::fmt::Display) -> Self {
        Self::new(Code::BadRequest, format!("{field}: {why}"))
    }

    /// What the client did not send in time.
    pub(crate) fn late(why: &str) -> Self {
        Self { status: StatusCode::REQUEST_TIMEOUT, ..Self::new(Code::BadRequest, why) }
    }

    /// For a front with words of its own.
    pub(crate) fn told(self) -> (StatusCode, Code, String) {
        (self.status, self.code, self.message)
    }

    /// Which call it was about, so that it can be asked for.
    pub(crate) fn of_call(self, call: CallId) -> Self {
        Self { call: Some(call), ..self }
    }
}

fn status(code: Code) -> StatusCode {
    match code {
        Code::Unauthorized => StatusCode::UNAUTHORIZED,
        Code::Forbidden | Code::MountDenied | Code::PermissionDenied => StatusCode::FORBIDDEN,
        Code::CallNotFound
        | Code::KeyNotFound
        | Code::NotFound
        | Code::SandboxNotFound
        | Code::SnapshotNotFound
        | Code::TaskNotFound
        | Code::TemplateNotFound
        | Code::VolumeNotFound
        | Code::WebhookNotFound => StatusCode::NOT_FOUND,
        Code::AlreadyExists
        | Code::Cancelled
        | Code::DuplicateExec
        | Code::FileBusy
        | Code::IdempotencyMismatch
        | Code::IsDirectory
        | Code::NotDirectory
        | Code::NotEmpty
        | Code::NotRegular
        | Code::MountBusy
        | Code::OutcomeUnknown
        | Code::LeaseLost
        | Code::SandboxBusy
        | Code::QuotaBelowUse
        | Code::SandboxGone
        | Code::SandboxInUse
        | Code::SandboxPaused
        | Code::ScopeConflict
        | Code::TemplateExists
        | Code::TemplateInUse
        | Code::VolumeExists
        | Code::VolumeInUse => StatusCode::CONFLICT,
        Code::OutputGone => StatusCode::GONE,
        Code::TooLarge => StatusCode::PAYLOAD_TOO_LARGE,
        Code::ArchiveInvalid
        | Code::BadRequest
        | Code::InvalidPath
        | Code::ProgramNotFound
        | Code::TemplateInvalid
        | Code::TooManyLinks
        | Code::UnknownUser
        | Code::Unsupported
        | Code::UserRequired
        | Code::WorkdirNotFound => StatusCode::BAD_REQUEST,
        Code::QuotaExceeded
        | Code::RateLimited
        | Code::TooManySearches
        | Code::TooManyStreams
        | Code::TooManyWatches
        | Code::TooManyWebhooks => StatusCode::TOO_MANY_REQUESTS,
        Code::PortClosed | Code::PortFailed => StatusCode::BAD_GATEWAY,
        Code::TimedOut => StatusCode::GATEWAY_TIMEOUT,
        Code::NoSpace => StatusCode::INSUFFICIENT_STORAGE,
        Code::Draining
        | Code::ProviderOffline
        | Code::SandboxRecovering
        | Code::ServerBusy
        | Code::StoreUnavailable
        | Code::HostExhausted
        | Code::HostUnsupported
        | Code::TooManyConnections => StatusCode::SERVICE_UNAVAILABLE,
        Code::DataDirNotOurs | Code::DataDirReadOnly | Code::DataDirVersion | Code::Internal | Code::ServerRunning => {
            StatusCode::INTERNAL_SERVER_ERROR
        }
    }
}

impl From<Error> for Refused {
    fn from(error: Error) -> Self {
        let code = error.code();
        // What a call failed with is in the log already, with the call.
        if !matches!(error, Error::Recorded { .. })
            && let Some(unsaid) = fault_lines::admit(code)
        {
            tracing::error!(code = code.as_str(), %error, unsaid, "a request failed");
        }
        Self { details: details(&error), ..Self::new(code, error.to_string()) }
    }
}

/// What has no bound is null.
fn details(error: &Error) -> Option<Value> {
    let number = |amount: u128| u64::try_from(amount).ok().filter(|amount| u128::from(*amount) < BOUNDLESS);
    match error {
        Error::Exceeded(exceeded) | Error::BelowUse(exceeded) => {
            let wanted = (!exceeded.is_boundless()).then_some(exceeded.wanted).and_then(number);
            let (quota, used) = (exceeded.quota.as_str(), number(exceeded.used));
            Some(json!({ "quota": quota, "limit": exceeded.limit, "used": used, "wanted": wanted }))
        }
        Error::RateLimited { limit } => Some(json!({ "quota": "calls_per_sec", "limit": limit })),
        _ => None,
    }
}

impl From<JsonRejection> for Refused {
    fn from(rejection: JsonRejection) -> Self {
        match rejection.status() {
            StatusCode::PAYLOAD_TOO_LARGE => Self::new(Code::TooLarge, "the body is larger than the server takes"),
            status => Self { status, ..Self::new(Code::BadRequest, rejection.body_text()) },
        }
    }
}

impl From<QueryRejection> for Refused {
    fn from(rejection: QueryRejection) -> Self {
        Self::new(Code::BadRequest, rejection.body_text())
    }
}

impl From<PathRejection> for Refused {
    fn from(rejection: PathRejection) -> Self {
        Self::new(Code::BadRequest, rejection.body_text())
    }
}

/// Of a message: it may hold what was sent.
const LONGEST: usize = 1000;

pub(crate) fn shortened(mut message: String) -> String {
    if message.len() > LONGEST {
        message.truncate(message.floor_char_boundary(LONGEST));
        message.push('…');
    }
    message
}

impl Refused {
    /// As it is told where the status is told already.
    pub(crate) fn body(self) -> ErrorBody {
        let Self { status, code, message, details, call } = self;
        let message = shortened(message);
        let docs = format!("docs/errors/{code}.md");
        let retryable = is_retryable(status);
        let error =
            ErrorInfo { code: code.as_str(), message, hint: code.hint(), docs, details, call_id: call, retryable };
        ErrorBody { error }
    }
}

fn is_retryable(status: StatusCode) -> bool {
    matches!(status, StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE | StatusCode::INSUFFICIENT_STORAGE)
}

impl IntoResponse for Refused {
    fn into_response(self) -> Response {
        self.respond(|body| body)
    }
}

impl Refused {
    pub(crate) fn status(&self) -> StatusCode {
        self.status
    }

    /// The same in other words.
    pub(crate) fn saying(self, message: &str) -> Self {
        Self { message: message.to_owned(), ..self }
    }

    /// With a body of one's own around it.
    pub(crate) fn respond<B: Serialize>(self, body: impl FnOnce(ErrorBody) -> B) -> Response {
        let (status, said) = (self.status, self.clone());
        let mut response = (status, Json(body(self.body()))).into_response();
        response.extensions_mut().insert(said); // for a front that says it in words of its own
        if is_retryable(status) {
            response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
        }
        if status == StatusCode::UNAUTHORIZED {
            response.headers_mut().insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response
    }
}

pub(crate) async fn no_route() -> Refused {
    Refused { status: StatusCode::NOT_FOUND, ..Refused::new(Code::BadRequest, "there is no such route") }
}

pub(crate) async fn no_method() -> Refused {
    let refused = Refused::new(Code::BadRequest, "the route does not take this method");
    Refused { status: StatusCode::METHOD_NOT_ALLOWED, ..refused }
}
