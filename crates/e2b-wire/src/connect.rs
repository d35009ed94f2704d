//! Errors of the Connect protocol: sixteen codes, each with a name and the HTTP status of a unary answer.
//!
//! A stream that has begun cannot change its status, so there the same body travels in the end frame.

use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

macro_rules! codes {
    ($($name:ident = $text:literal, $status:literal;)*) => {
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum Code { $($name,)* }

        impl Code {
            pub const ALL: &'static [Code] = &[$(Code::$name,)*];

            pub fn as_str(self) -> &'static str {
                match self { $(Code::$name => $text,)* }
            }

            pub fn http_status(self) -> u16 {
                match self { $(Code::$name => $status,)* }
            }

            pub fn parse(text: &str) -> Option<Self> {
                match text { $($text => Some(Code::$name),)* _ => None }
            }
        }
    };
}

codes! {
    Canceled = "canceled", 499;
    Unknown = "unknown", 500;
    InvalidArgument = "invalid_argument", 400;
    DeadlineExceeded = "deadline_exceeded", 504;
    NotFound = "not_found", 404;
    AlreadyExists = "already_exists", 409;
    PermissionDenied = "permission_denied", 403;
    ResourceExhausted = "resource_exhausted", 429;
    FailedPrecondition = "failed_precondition", 400;
    Aborted = "aborted", 409;
    OutOfRange = "out_of_range", 400;
    Unimplemented = "unimplemented", 501;
    Internal = "internal", 500;
    Unavailable = "unavailable", 503;
    DataLoss = "data_loss", 500;
    Unauthenticated = "unauthenticated", 401;
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl Serialize for Code {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

impl<'de> Deserialize<'de> for Code {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        // A code that is not known is still an error, and must not hide the message beside it.
        let name = String::deserialize(deserializer)?;
        Ok(Self::parse(&name).unwrap_or(Self::Unknown))
    }
}

/// The body of a unary error, and what stands under `error` in an end frame.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{code}: {message}")]
pub struct Error {
    pub code: Code,
    #[serde(default)]
    pub message: String,
}

/// A message may quote what a stranger sent, such as a path. This much of it is enough for anybody.
const LONGEST_MESSAGE: usize = 16 * 1024;

impl Error {
    pub fn new(code: Code, message: impl Into<String>) -> Self {
        let mut message = message.into();
        message.truncate(message.floor_char_boundary(LONGEST_MESSAGE));
        Self { code, message }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_are_sixteen_codes_and_each_reads_back() {
        assert_eq!(Code::ALL.len(), 16);
        for code in Code::ALL {
            assert_eq!(Code::parse(code.as_str()), Some(*code));
            assert!((400..600).contains(&code.http_status()), "{code}");
        }
        assert_eq!(Code::parse("NOT_FOUND"), None);
    }

    #[test]
    fn the_statuses_are_those_that_clients_expect() {
        let statuses = Code::ALL.iter().map(|code| code.http_status()).collect::<Vec<_>>();
        assert_eq!(statuses, [499, 500, 400, 504, 404, 409, 403, 429, 400, 409, 400, 501, 500, 503, 500, 401]);
    }

    #[test]
    fn the_body_has_a_code_and_a_message() {
        let error = Error::new(Code::NotFound, "process with pid 7 not found");
        let body = serde_json::to_string(&error).unwrap();
        assert_eq!(body, r#"{"code":"not_found","message":"process with pid 7 not found"}"#);
        assert_eq!(serde_json::from_str::<Error>(&body).unwrap(), error);
    }

    #[test]
    fn a_body_of_a_newer_server_is_read_as_far_as_it_is_known() {
        let body = r#"{"code":"teapot","details":[{"type":"x","value":"eA"}]}"#;
        assert_eq!(serde_json::from_str::<Error>(body).unwrap(), Error { code: Code::Unknown, message: String::new() });
        assert!(serde_json::from_str::<Error>(r#"{"message":"without a code"}"#).is_err());
    }

    #[test]
    fn a_message_that_is_too_long_is_cut_between_characters() {
        let error = Error::new(Code::Internal, "é".repeat(LONGEST_MESSAGE));
        assert_eq!(error.message.len(), LONGEST_MESSAGE);
        let error = Error::new(Code::Internal, format!("x{}", "é".repeat(LONGEST_MESSAGE)));
        assert_eq!(error.message.len(), LONGEST_MESSAGE - 1);
    }
}
