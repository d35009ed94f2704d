//! Running a case: bounded in time, with its sandboxes removed at the end, whatever the end is.

use std::{
    any::Any,
    fmt,
    future::Future,
    panic::{AssertUnwindSafe, Location},
    sync::Arc,
};

use futures_util::FutureExt;

use super::{Case, Stage, Subject, WATCHDOG, cases};

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    Passed,
    /// The provider says that it cannot do what the case is about.
    NotApplicable,
    Failed(String),
}

/// Runs one case.
pub async fn verdict(case: &Case, subject: Arc<dyn Subject>) -> Verdict {
    if !case.needs.met_by(&subject.provider().capabilities()) {
        return Verdict::NotApplicable;
    }
    let stage = Arc::new(Stage::new(subject));
    let run = AssertUnwindSafe((case.run)(stage.clone())).catch_unwind();
    let result = match tokio::time::timeout(WATCHDOG, run).await {
        Ok(Ok(outcome)) => outcome,
        Ok(Err(panic)) => Err(Failure(panic_text(panic.as_ref()))),
        Err(_) => Err(Failure(format!("it hangs: it was not done after {} s", WATCHDOG.as_secs()))),
    };
    let cleared = match tokio::time::timeout(WATCHDOG, stage.clear()).await {
        Ok(cleared) => cleared,
        Err(_) => Err(Failure("removing its sandboxes hangs".into())),
    };
    match result.and(cleared) {
        Ok(()) => Verdict::Passed,
        Err(Failure(why)) => Verdict::Failed(format!("{}: {why}", case.name)),
    }
}

/// Runs one case and panics if it fails.
pub async fn check(case: &Case, subject: Arc<dyn Subject>) {
    match verdict(case, subject).await {
        Verdict::Passed => {}
        Verdict::NotApplicable => println!("{}: the provider has no {:?}, and says so", case.name, case.needs),
        Verdict::Failed(why) => panic!("{why}"),
    }
}

/// What the tests of [`conformance!`](crate::conformance!) call: outside of any runtime.
pub fn check_by_name<S: Subject + 'static>(name: &str, subject: impl Future<Output = S>) {
    let Some(case) = cases().iter().find(|case| case.name == name) else { panic!("there is no case {name}") };
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let runtime = runtime.unwrap_or_else(|error| panic!("cannot start a runtime: {error}"));
    runtime.block_on(async { check(case, Arc::new(subject.await)).await });
}

fn panic_text(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().map(String::as_str).or(panic.downcast_ref::<&str>().copied());
    format!("it panicked: {}", text.unwrap_or("without a text"))
}

pub(crate) type Outcome<T = ()> = Result<T, Failure>;

/// Why a case failed. No `Error` itself, so that each error can become one, with the place where it came up.
#[derive(Debug)]
pub(crate) struct Failure(String);

impl Failure {
    #[track_caller]
    pub(crate) fn new(why: impl fmt::Display) -> Self {
        let at = Location::caller();
        Self(format!("{why} ({}:{})", at.file(), at.line()))
    }
}

impl<E: std::error::Error> From<E> for Failure {
    #[track_caller]
    fn from(error: E) -> Self {
        Self::new(format_args!("unexpected error: {error}"))
    }
}

/// Fails the case unless the condition holds.
macro_rules! ensure {
    ($holds:expr, $($why:tt)+) => {
        if !$holds {
            return Err($crate::conformance::verdict::Failure::new(format_args!($($why)+)));
        }
    };
}

/// Fails the case unless both are the same.
macro_rules! same {
    ($left:expr, $right:expr) => { same!($left, $right, "{} is {}", stringify!($left), stringify!($right)) };
    ($left:expr, $right:expr, $($why:tt)+) => {{
        let (left, right) = (&$left, &$right);
        if left != right {
            let why = format!($($why)+);
            let why = format!("does not hold: {why}\n  is:     {left:?}\n  wanted: {right:?}");
            return Err($crate::conformance::verdict::Failure::new(why));
        }
    }};
}

/// Fails the case unless the operation was refused in this very way.
macro_rules! refused {
    ($result:expr, $pattern:pat) => {
        match $result {
            Err($pattern) => {}
            Err(other) => {
                let why = format!("{} must be {}, and is {other:?}", stringify!($result), stringify!($pattern));
                return Err($crate::conformance::verdict::Failure::new(why));
            }
            Ok(_) => {
                let why = format!("{} must be {}, and is Ok", stringify!($result), stringify!($pattern));
                return Err($crate::conformance::verdict::Failure::new(why));
            }
        }
    };
}

pub(crate) use {ensure, refused, same};
