//! The engine through its public interface: the conformance suite, and what only an engine promises.

mod stage;

mod conformance {
    cabana_testkit::conformance!(crate::stage::OnHost::open().await);
}
