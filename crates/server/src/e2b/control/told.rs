//! A sandbox of ours in E2B's words.

use cabana_e2b_wire::{SandboxId, control};
use cabana_runtime::{Action, Caller, Opens, Record, SandboxState, Time, Wanted};

use super::{
    super::{ENVD_VERSION, kept::Kept, refused::Refused},
    one::One,
};
use crate::{App, specs::Spec};

fn not_ours() -> Refused {
    Refused::not_found("sandbox not found")
}

fn id(record: &Record) -> Result<SandboxId, Refused> {
    record.id.as_str().parse().map_err(|_| not_ours())
}

pub(super) async fn sandbox(
    app: &App,
    caller: &Caller,
    record: &Record,
    kept: &Kept,
) -> Result<control::Sandbox, Refused> {
    let inside = match kept.secure {
        true => app.runtime.access_token(caller, record, Opens::Inside).await?,
        false => None,
    };
    let traffic = match kept.is_public() {
        true => None,
        false => app.runtime.access_token(caller, record, Opens::Ports).await?,
    };
    Ok(control::Sandbox {
        envd_access_token: inside.map(Into::into),
        traffic_access_token: traffic.map(Into::into),
        domain: app.options.domain.clone(),
        ..control::Sandbox::new(kept.template.clone(), id(record)?, ENVD_VERSION.to_owned())
    })
}

/// Whether it runs, as far as anybody can tell who does not look inside.
pub(super) fn state(state: SandboxState) -> control::SandboxState {
    use SandboxState as S;
    match state {
        S::Running | S::Provisioning | S::Waking | S::Restoring => control::SandboxState::Running,
        _ => control::SandboxState::Paused,
    }
}

pub(super) fn ends(wanted: &Wanted, record: &Record) -> Time {
    wanted.lifecycle.expires_at.filter(|end| *end < FAR).unwrap_or(record.changed)
}

/// One whose end is not before this has none.
pub(super) const FAR: Time = Time::constant(32_503_680_000, 0);

/// `None`: another front made it.
pub(super) fn listed(record: &Record, spec: &Spec) -> Option<control::ListedSandbox> {
    const MIB: u64 = 1 << 20;
    let (wanted, kept) = (&spec.wanted, spec.kept.as_ref()?);
    let limits = &wanted.sandbox.limits;
    let in_mib = |bytes: Option<u64>| u32::try_from(bytes.unwrap_or(0) / MIB).unwrap_or(u32::MAX);
    Some(control::ListedSandbox {
        template_id: kept.template.clone(),
        alias: Some(kept.template.clone()),
        sandbox_id: id(record).ok()?,
        client_id: "cabana".to_owned(),
        started_at: record.started.unwrap_or(record.created),
        end_at: ends(wanted, record),
        cpu_count: limits.cpu_milli.map_or(1, |milli| milli.div_ceil(1000)),
        memory_mb: in_mib(limits.memory),
        disk_size_mb: in_mib(limits.disk),
        metadata: wanted.labels.clone(),
        state: state(record.state),
        envd_version: ENVD_VERSION.to_owned(),
        volume_mounts: Vec::new(),
    })
}

pub(super) async fn detail(one: &One) -> Result<control::SandboxDetail, Refused> {
    let One { app, caller, record, spec, kept } = one;
    let listed = listed(record, spec).ok_or_else(not_ours)?;
    let on_timeout = match spec.wanted.lifecycle.on_expire {
        Some(Action::Pause | Action::Stop) => control::OnTimeout::Pause,
        _ => control::OnTimeout::Kill,
    };
    let pause_mode = match record.state {
        SandboxState::Paused | SandboxState::Pausing => Some(control::PauseMode::Full),
        _ if listed.state == control::SandboxState::Paused => Some(control::PauseMode::Filesystem),
        _ => None,
    };
    let sandbox = sandbox(app, caller, record, kept).await?;
    Ok(control::SandboxDetail {
        listed,
        envd_access_token: sandbox.envd_access_token,
        allow_internet_access: kept.allow_internet_access,
        domain: sandbox.domain,
        network: kept.network.clone(),
        lifecycle: Some(control::Lifecycle { auto_resume: kept.auto_resume, on_timeout }),
        pause_mode,
        envd_unresponsive_at_pause: None,
    })
}
