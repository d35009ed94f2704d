//! The engine through its public interface: the conformance suite, and what only an engine promises.

mod stage;

mod conformance {
    cabana_testkit::conformance!(crate::stage::OnHost::open(true).await);
}

mod conformance_without_cgroups {
    cabana_testkit::conformance!(crate::stage::OnHost::open(false).await);
}
