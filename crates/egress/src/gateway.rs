//! Resolve, check, dial: the one path that every way out takes, whatever protocol asked for it.
//!
//! Under a name: the name is judged, resolved once, each address is judged, and one of these very addresses is connected.
//! No name is resolved a second time in between, so an answer that changes changes nothing. A [`Flow`] remembers what was
//! judged, so that a connection that a new policy refuses is ended.

use std::{
    future::Future,
    io,
    net::{IpAddr, SocketAddr},
    pin::pin,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

use cabana_sandbox::Holder;
use tokio::{sync::watch, time::timeout};

use crate::{
    decision::{Decision, Reason},
    event::{How, Reporter},
    host::{Host, Name},
    lookup::{HOST_NAME, Lookup},
    outer::Outer,
    outside::{Connect, ResolveError},
    pace::Pace,
    policy::Policy,
    queues::LongQueues,
    serve::Limits,
    synthetic::{Behind, Pool},
};

/// Addresses of one name that are tried before giving up.
const TRIED: usize = 4;

pub(crate) struct Gateway {
    pub limits: Limits,
    pub policy: watch::Receiver<Arc<Policy>>,
    pub reporter: Reporter,
    pub lookup: Lookup,
    pub connect: Arc<dyn Connect>,
    /// For connections with long queues, and whose they are.
    pub long_queues: (LongQueues, Holder),
    pub pool: Mutex<Pool>,
    /// Of questions of the DNS, whatever way they come.
    pub questions: Pace,
}

/// One connection that was allowed, and by what.
pub(crate) struct Flow {
    pub how: How,
    pub host: Host,
    pub port: u16,
    address: IpAddr,
    /// What it has seen of the policy; a later change wakes whoever carries the flow.
    policy: watch::Receiver<Arc<Policy>>,
    /// The host that its TLS or HTTP named, where it was looked at.
    speaks_for: Mutex<Option<Host>>,
    /// Whether a TLS hello of it had another one in it, where it was looked at.
    has_encrypted_hello: AtomicBool,
}

pub(crate) enum NotDialed {
    Refused(Decision),
    Missing,
    Unreachable,
    TimedOut,
}

impl Gateway {
    pub(crate) async fn dial(&self, how: How, asked: Host, port: u16) -> Result<(Flow, Outer), NotDialed> {
        let mut watched = self.policy.clone();
        let policy = watched.borrow_and_update().clone();
        let refused = |host: &Host, decision: Decision| {
            self.reporter.report(how, &host.to_string(), port, &decision);
            NotDialed::Refused(decision)
        };
        let host = self.unmask(&asked).map_err(|reason| refused(&asked, Decision::deny(policy.mode(), reason)))?;
        let decision = policy.decide(&host, port);
        if !decision.allowed {
            return Err(refused(&host, decision));
        }
        let addresses = match &host {
            Host::Address(address) => vec![*address],
            Host::Name(name) => {
                let found = self.lookup.addresses(name).await.map_err(|error| match error {
                    ResolveError::Missing => NotDialed::Missing,
                    ResolveError::Failed => NotDialed::TimedOut,
                })?;
                let judge = |address| policy.decide_resolved(name, address, port);
                allowed_of(&found, judge).map_err(|decision| match leads_inside(name, &decision) {
                    true => NotDialed::Missing,
                    false => refused(&host, decision),
                })?
            }
        };
        self.reporter.report(how, &host.to_string(), port, &decision);
        let (address, stream) = self.connect(&addresses, port).await?;
        let (speaks_for, has_encrypted_hello) = (Mutex::default(), AtomicBool::new(false));
        Ok((Flow { how, host, port, address, policy: watched, speaks_for, has_encrypted_hello }, stream))
    }

    /// May the name be told to the guest? `Ok` has at least one address that it may reach.
    pub(crate) async fn check_lookup(&self, name: &Name) -> Result<(), NotDialed> {
        let policy = self.policy.borrow().clone();
        let mut decision = policy.decide_lookup(name);
        if decision.allowed {
            match self.lookup.addresses(name).await {
                Ok(found) => match allowed_of(&found, |address| policy.decide_lookup_resolved(name, address)) {
                    Err(inner) if leads_inside(name, &inner) => return Err(NotDialed::Missing),
                    Err(inner) => decision = inner,
                    Ok(_) => {}
                },
                Err(ResolveError::Missing) => return Err(NotDialed::Missing),
                Err(ResolveError::Failed) => return Err(NotDialed::TimedOut),
            }
        }
        self.reporter.report(How::Dns, name.as_str(), 0, &decision);
        if decision.allowed { Ok(()) } else { Err(NotDialed::Refused(decision)) }
    }

    /// A refusal before there was a host to judge.
    pub(crate) fn refuse(&self, how: How, host: &str, port: u16, reason: Reason) -> Decision {
        let decision = Decision::deny(self.policy.borrow().mode(), reason);
        self.reporter.report(how, host, port, &decision);
        decision
    }

    /// The host that a flow speaks for inside its connection must be its own, or one that it could have dialled.
    pub(crate) fn check_spoken(&self, flow: &Flow, spoken: Host) -> Result<(), Decision> {
        let policy = self.policy.borrow().clone();
        if !policy.allows_spoken(flow, &spoken) {
            return Err(self.refuse_flow(flow, Reason::OtherHost(spoken.to_string())));
        }
        *flow.speaks_for.lock().unwrap_or_else(PoisonError::into_inner) = Some(spoken);
        Ok(())
    }

    /// The flow may speak for any host in an encrypted hello.
    pub(crate) fn check_encrypted_hello(&self, flow: &Flow) -> Result<(), Decision> {
        flow.has_encrypted_hello.store(true, Ordering::Relaxed);
        let policy = self.policy.borrow().clone();
        if policy.refuses_encrypted_hello() {
            return Err(self.refuse_flow(flow, Reason::EncryptedHello));
        }
        Ok(())
    }

    pub(crate) fn refuse_flow(&self, flow: &Flow, reason: Reason) -> Decision {
        self.refuse(flow.how, &flow.host.to_string(), flow.port, reason)
    }

    /// Runs the work until it ends or a new policy refuses the flow, which is `None`.
    pub(crate) async fn while_allowed<T>(&self, flow: &Flow, work: impl Future<Output = T>) -> Option<T> {
        let mut watched = flow.policy.clone();
        let mut work = pin!(work);
        loop {
            tokio::select! {
                done = &mut work => return Some(done),
                changed = watched.changed() => {
                    changed.ok()?;
                    let policy = watched.borrow_and_update().clone();
                    let decision = policy.decide_flow(flow);
                    if !decision.allowed {
                        self.reporter.report(flow.how, &flow.host.to_string(), flow.port, &decision);
                        return None;
                    }
                }
            }
        }
    }

    /// A synthetic address is the name that was asked for, by whatever way the guest uses it.
    fn unmask(&self, host: &Host) -> Result<Host, Reason> {
        let Host::Address(address) = host else { return Ok(host.clone()) };
        let mut pool = self.pool.lock().unwrap_or_else(PoisonError::into_inner);
        match pool.behind(*address) {
            Behind::Name(name) => Ok(Host::Name(name)),
            Behind::NotOurs => Ok(host.clone()),
            Behind::Nothing => Err(Reason::NoName),
        }
    }

    async fn connect(&self, addresses: &[IpAddr], port: u16) -> Result<(IpAddr, Outer), NotDialed> {
        let tried = &addresses[..addresses.len().min(TRIED)];
        let patience = self.limits.connect / u32::try_from(tried.len()).unwrap_or(1).max(1);
        let mut last = NotDialed::Unreachable;
        for address in tried {
            match timeout(patience, self.connect.connect(SocketAddr::new(*address, port))).await {
                Ok(Ok(stream)) => {
                    let (long, holder) = &self.long_queues;
                    return Ok((*address, stream.with_long_queues(long, holder)));
                }
                Ok(Err(error)) if error.kind() == io::ErrorKind::TimedOut => last = NotDialed::TimedOut,
                Ok(Err(_)) => last = NotDialed::Unreachable,
                Err(_) => last = NotDialed::TimedOut,
            }
        }
        Err(last)
    }
}

impl Policy {
    fn allows_spoken(&self, flow: &Flow, spoken: &Host) -> bool {
        *spoken == flow.host || self.decide(spoken, flow.port).allowed
    }

    fn decide_flow(&self, flow: &Flow) -> Decision {
        let decision = match &flow.host {
            Host::Name(name) => self.decide_resolved(name, flow.address, flow.port),
            Host::Address(address) => self.decide(&Host::Address(*address), flow.port),
        };
        if !decision.allowed {
            return decision;
        }
        let spoken = flow.speaks_for.lock().unwrap_or_else(PoisonError::into_inner).clone();
        match spoken {
            Some(spoken) if !self.allows_spoken(flow, &spoken) => {
                Decision::deny(self.mode(), Reason::OtherHost(spoken.to_string()))
            }
            _ if self.refuses_encrypted_hello() && flow.has_encrypted_hello.load(Ordering::Relaxed) => {
                Decision::deny(self.mode(), Reason::EncryptedHello)
            }
            _ => decision,
        }
    }
}

/// Such a name is to its guest, and to the tenant, as one that is not there: else they would learn which names this machine's
/// resolver knows, and the addresses of the operator's networks. The name that every sandbox has for this host is no secret.
fn leads_inside(name: &Name, decision: &Decision) -> bool {
    let Reason::Inner { address, class } = &decision.reason else { return false };
    if name.as_str() == HOST_NAME {
        return false;
    }
    tracing::debug!(%name, %address, %class, "a sandbox asked for a name that leads inside");
    true
}

/// Those addresses that may be reached; if there are none, why the first may not.
fn allowed_of(found: &[IpAddr], judge: impl Fn(IpAddr) -> Decision) -> Result<Vec<IpAddr>, Decision> {
    let mut refusal = None;
    let mut allowed = Vec::new();
    for address in found {
        match judge(*address) {
            Decision { allowed: true, .. } => allowed.push(*address),
            decision => refusal = refusal.or(Some(decision)),
        }
    }
    match refusal {
        Some(decision) if allowed.is_empty() => Err(decision),
        _ => Ok(allowed),
    }
}
