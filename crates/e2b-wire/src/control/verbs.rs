//! What is done to one sandbox: connect, pause, resume, its time, fork. Times are in seconds.

use serde::{Deserialize, Deserializer, Serialize};

use super::{ApiError, Sandbox};
use crate::json::{number, or_default, or_number, or_yes, yes};

/// `POST /sandboxes/{id}/connect`. The time is only ever made longer by it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConnectSandbox {
    pub timeout: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<bool>,
}

/// `POST /v2/sandboxes/{id}/connect`
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConnectSandboxV2 {
    #[serde(default = "number::<300>", deserialize_with = "or_number::<300, _>")]
    pub timeout: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<bool>,
}

/// `POST /sandboxes/{id}/pause`, the body of which may be left out, which means the same as an empty object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PauseSandbox {
    /// Whether memory and processes are kept, or the files alone.
    #[serde(default = "yes", deserialize_with = "or_yes")]
    pub memory: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub require_healthy_guest: Option<bool>,
}

impl Default for PauseSandbox {
    fn default() -> Self {
        Self { memory: true, require_healthy_guest: None }
    }
}

/// `POST /sandboxes/{id}/resume`
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ResumeSandbox {
    #[serde(default = "number::<15>", deserialize_with = "or_number::<15, _>")]
    pub timeout: u32,
    #[serde(default, deserialize_with = "or_default")]
    pub auto_pause: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<bool>,
}

/// `POST /sandboxes/{id}/timeout`: so long from now. Zero is now, and less than zero is zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SetTimeout {
    #[serde(deserialize_with = "not_below_zero")]
    pub timeout: u32,
}

fn not_below_zero<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u32, D::Error> {
    let seconds = i64::deserialize(deserializer)?.max(0);
    Ok(u32::try_from(seconds).unwrap_or(u32::MAX))
}

/// `POST /sandboxes/{id}/refreshes`
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RefreshSandbox {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub duration: Option<u32>,
}

/// `POST /sandboxes/{id}/fork`
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ForkSandbox {
    #[serde(default = "number::<15>", deserialize_with = "or_number::<15, _>")]
    pub timeout: u32,
    #[serde(default = "number::<1>", deserialize_with = "or_number::<1, _>")]
    pub count: u32,
}

/// Each fork succeeds or fails by itself.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum ForkResult {
    Sandbox(Sandbox),
    Error(ApiError),
}

#[cfg(test)]
mod tests {
    use serde::de::DeserializeOwned;

    use super::*;

    fn read<T: DeserializeOwned>(body: &str) -> T {
        serde_json::from_str(body).unwrap_or_else(|error| panic!("{body}: {error}"))
    }

    #[test]
    fn connect_says_how_long_and_in_the_newest_generation_need_not() {
        assert_eq!(read::<ConnectSandbox>(r#"{"timeout":300}"#).timeout, 300);
        assert!(serde_json::from_str::<ConnectSandbox>("{}").is_err());
        for body in ["{}", r#"{"timeout":null}"#, r#"{"timeout":300}"#] {
            assert_eq!(read::<ConnectSandboxV2>(body), ConnectSandboxV2 { timeout: 300, memory: None });
        }
        assert_eq!(read::<ConnectSandboxV2>(r#"{"timeout":5,"memory":false}"#).memory, Some(false));
    }

    #[test]
    fn a_pause_keeps_the_memory_unless_it_says_otherwise() {
        for body in ["{}", r#"{"memory":null}"#, r#"{"memory":true}"#] {
            assert_eq!(read::<PauseSandbox>(body), PauseSandbox::default(), "{body:?}");
        }
        let pause: PauseSandbox = read(r#"{"memory":false,"requireHealthyGuest":true}"#);
        assert_eq!(pause, PauseSandbox { memory: false, require_healthy_guest: Some(true) });
    }

    #[test]
    fn resume_has_the_defaults_of_its_time() {
        assert_eq!(read::<ResumeSandbox>("{}"), ResumeSandbox { timeout: 15, auto_pause: false, memory: None });
        let sent = r#"{"timeout":60,"autoPause":true}"#;
        assert_eq!(read::<ResumeSandbox>(sent), ResumeSandbox { timeout: 60, auto_pause: true, memory: None });
    }

    #[test]
    fn a_time_below_zero_is_now() {
        for (body, timeout) in [
            (r#"{"timeout":5}"#, 5),
            (r#"{"timeout":0}"#, 0),
            (r#"{"timeout":-7}"#, 0),
            (r#"{"timeout":99999999999}"#, u32::MAX),
        ] {
            assert_eq!(read::<SetTimeout>(body).timeout, timeout, "{body}");
        }
        for bad in ["{}", r#"{"timeout":null}"#, r#"{"timeout":"5"}"#] {
            assert!(serde_json::from_str::<SetTimeout>(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_refresh_may_leave_the_duration_to_us() {
        assert_eq!(read::<RefreshSandbox>("{}").duration, None);
        assert_eq!(read::<RefreshSandbox>(r#"{"duration":60}"#).duration, Some(60));
    }

    #[test]
    fn forks_succeed_or_fail_one_by_one() {
        assert_eq!(read::<ForkSandbox>("{}"), ForkSandbox { timeout: 15, count: 1 });
        assert_eq!(read::<ForkSandbox>(r#"{"timeout":60,"count":3}"#), ForkSandbox { timeout: 60, count: 3 });
        let results = [
            ForkResult::Sandbox(Sandbox::new("base".into(), "iabc".parse().unwrap(), "0.6.13".into())),
            ForkResult::Error(ApiError::new(503, "no room")),
        ];
        let body = concat!(
            r#"[{"sandbox":{"templateID":"base","sandboxID":"iabc","clientID":"cabana","envdVersion":"0.6.13"}},"#,
            r#"{"error":{"code":503,"message":"no room"}}]"#
        );
        assert_eq!(serde_json::to_string(&results).unwrap(), body);
        assert_eq!(read::<[ForkResult; 2]>(body), results);
    }
}
