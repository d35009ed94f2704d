//! What went wrong, as all of E2B's plain HTTP says it.

use serde::{Deserialize, Serialize};

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{code}: {message}")]
pub struct ApiError {
    /// The HTTP status again, if it is ours.
    pub code: i32,
    pub message: String,
    /// A name for what went wrong, that programs can go by.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error_code: Option<String>,
}

impl ApiError {
    pub fn new(status: u16, message: impl Into<String>) -> Self {
        Self { code: status.into(), message: message.into(), error_code: None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_body_is_the_one_that_tests_of_the_sdks_compare() {
        let error = ApiError::new(401, crate::signature::AccessError::Expired.to_string());
        let body = serde_json::to_string(&error).unwrap();
        assert_eq!(body, r#"{"code":401,"message":"signature is already expired"}"#);
        assert_eq!(serde_json::from_str::<ApiError>(&body).unwrap(), error);
    }

    #[test]
    fn it_may_have_a_name() {
        let body = r#"{"code":503,"message":"no room","error_code":"sandbox_capacity_unavailable"}"#;
        let error: ApiError = serde_json::from_str(body).unwrap();
        assert_eq!(error.error_code.as_deref(), Some("sandbox_capacity_unavailable"));
        assert_eq!(serde_json::to_string(&error).unwrap(), body);
    }
}
