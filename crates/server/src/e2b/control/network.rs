//! What a sandbox may reach: as E2B's clients say it, and as a policy of ours says it.
//!
//! What is allowed beats what is denied; what is said of neither is as usual here. What this server cannot do is refused by name,
//! and never left out in silence: who asks for a wall gets that wall or none.

#[cfg(test)]
mod tests;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use axum::{
    extract::State,
    http::{StatusCode, uri::Authority},
};
use cabana_e2b_wire::control::{NetworkConfig, NetworkUpdate};
use cabana_runtime::{Wish, acts::sandbox::Change, check_rules};
use cabana_sandbox::NetworkPolicy;

use super::{
    super::{kept::Kept, refused::Refused},
    one::One,
};
use crate::{
    App,
    auth::User,
    extract::{Body, Path},
};

/// What stands for everything.
const ALL: &str = "0.0.0.0/0";

/// `PUT /sandboxes/{id}/network`: takes the place of all that was said before.
pub(super) async fn replace(
    State(app): State<App>,
    User(caller): User,
    Path(sandbox): Path<String>,
    Body(asked): Body<NetworkUpdate>,
) -> Result<StatusCode, Refused> {
    let one = One::find(&app, caller, &sandbox).await?;
    let mut kept = Kept::clone(&one.kept);
    let before = kept.network.take().unwrap_or_default();
    let network = NetworkConfig {
        allow_public_traffic: before.allow_public_traffic,
        mask_request_host: before.mask_request_host,
        allow_out: asked.allow_out,
        deny_out: asked.deny_out,
        egress_proxy: asked.egress_proxy,
        rules: asked.rules,
        ..NetworkConfig::default()
    };
    let usual = usual(&app)?;
    let policy = policy_of(Some(&network), asked.allow_internet_access, &usual)?.unwrap_or(usual);
    if one.is_paused() {
        let why = format!("sandbox \"{sandbox}\" is paused: resume it to change its network");
        return Err(Refused::new(StatusCode::CONFLICT, why));
    }
    kept.network = Some(network);
    kept.allow_internet_access = asked.allow_internet_access;
    one.call(Change { network: Some(policy), note: kept.note(), ..Change::default() }).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Of a sandbox of which nobody says anything.
pub(super) fn usual(app: &App) -> Result<NetworkPolicy, Refused> {
    Ok(app.runtime.settings().wanted(Wish::default())?.0.sandbox.network)
}

/// `None`: as usual.
pub(super) fn policy_of(
    network: Option<&NetworkConfig>,
    internet: Option<bool>,
    usual: &NetworkPolicy,
) -> Result<Option<NetworkPolicy>, Refused> {
    let nothing = NetworkConfig::default();
    let network = network.unwrap_or(&nothing);
    can_be_done(network)?;
    check_mask(network.mask_request_host.as_deref())?;
    let deny = network.deny_out.iter().map(|rule| {
        let denied = net(rule);
        denied.ok_or_else(|| Refused::bad(format!("invalid denied CIDR {rule}: domains cannot be denied")))
    });
    let deny: Vec<String> = deny.collect::<Result<_, _>>()?;
    let (nets, names) = sorted(&network.allow_out)?;
    let denies_all = deny.iter().any(|rule| rule == ALL);
    if !names.is_empty() && !denies_all {
        return Err(Refused::bad(
            "allowOut has domains, so denyOut has to have 'ALL_TRAFFIC' (0.0.0.0/0): all else has to be blocked",
        ));
    }
    let allows_all = nets.iter().any(|rule| rule == ALL);
    Ok(match (internet, usual) {
        _ if allows_all && (denies_all || internet == Some(false)) => Some(NetworkPolicy::Public),
        _ if denies_all || internet == Some(false) => match [nets, names].concat() {
            allow if allow.is_empty() => Some(NetworkPolicy::Off),
            allow => Some(NetworkPolicy::Allow(allow)),
        },
        (Some(true), _) if deny.is_empty() => Some(NetworkPolicy::Public),
        _ if deny.is_empty() => None,
        // What is denied is taken from what is there, and never opens more.
        (None, NetworkPolicy::Off) => None,
        (None, NetworkPolicy::Allow(_)) => {
            return Err(Refused::bad(
                "denyOut: sandboxes of this server reach what the operator lists and nothing else. Say \
                 allow_internet_access, or deny 0.0.0.0/0 and list what is allowed",
            ));
        }
        _ => Some(NetworkPolicy::PublicBut { deny, allow: nets }),
    })
}

/// Addresses and networks, and names.
fn sorted(allow: &[String]) -> Result<(Vec<String>, Vec<String>), Refused> {
    let (mut nets, mut names) = (Vec::new(), Vec::new());
    for rule in allow {
        match (net(rule), is_net(rule)) {
            (Some(net), _) => nets.push(net),
            (None, true) => return Err(Refused::bad(format!("invalid allowed address {rule}"))),
            (None, false) => names.push(rule.clone()),
        }
    }
    match check_rules(&names) {
        Ok(()) => Ok((nets, names)),
        Err(why) => Err(Refused::bad(format!("allowOut: {why}"))),
    }
}

fn is_net(rule: &str) -> bool {
    rule.split('/').next().is_some_and(|address| address.parse::<IpAddr>().is_ok())
}

/// An address or a network in our notation: without what lies beyond its bits. None is the one that is no address.
fn net(rule: &str) -> Option<String> {
    if rule == ALL {
        return Some(ALL.to_owned());
    }
    let (address, bits) = rule.split_once('/').map_or((rule, None), |(address, bits)| (address, Some(bits)));
    let address: IpAddr = address.parse().ok()?;
    let address = if bits.is_none() { address.to_canonical() } else { address };
    if address.is_unspecified() {
        return None;
    }
    let Some(bits) = bits else { return Some(address.to_string()) };
    let most = if address.is_ipv4() { 32 } else { 128 };
    let len: u32 = bits.parse().ok().filter(|len| *len <= most && bits.bytes().all(|byte| byte.is_ascii_digit()))?;
    Some(match address {
        IpAddr::V4(v4) => {
            let mask = u32::MAX.checked_shl(32 - len).unwrap_or(0);
            format!("{}/{len}", Ipv4Addr::from_bits(v4.to_bits() & mask))
        }
        IpAddr::V6(v6) => {
            let mask = u128::MAX.checked_shl(128 - len).unwrap_or(0);
            format!("{}/{len}", Ipv6Addr::from_bits(v6.to_bits() & mask))
        }
    })
}

fn can_be_done(network: &NetworkConfig) -> Result<(), Refused> {
    let refuse = |what: &str, why: &str| Err(Refused::bad(format!("network.{what} cannot be done here: {why}")));
    if network.egress_proxy.is_some() {
        return refuse("egressProxy", "what leaves a sandbox goes through the operator's own proxy, or none");
    }
    let transforms = network.rules.values().flatten().filter_map(|rule| rule.transform.as_ref());
    if transforms.into_iter().any(|transform| !transform.headers.is_empty()) {
        return refuse("rules", "nothing is put into requests, since they are encrypted where the sandbox ends");
    }
    if !network.dns_servers.is_empty() {
        return refuse("dnsServers", "names are looked up by the server, which judges each answer");
    }
    if !network.https_ports.is_empty() {
        return refuse("httpsPorts", "TLS is known by what is sent, on every port");
    }
    Ok(())
}

/// The longest name, a port, and what stands for one.
const MAX_MASK: usize = 300;

fn check_mask(mask: Option<&str>) -> Result<(), Refused> {
    let Some(mask) = mask else { return Ok(()) };
    if mask.len() > MAX_MASK {
        return Err(Refused::bad(format!("mask request host is longer than {MAX_MASK} bytes")));
    }
    let shown = mask.replace("${PORT}", "80");
    let is_plain = !shown.contains('@') && shown.parse::<Authority>().is_ok_and(|host| !host.host().is_empty());
    if is_plain { Ok(()) } else { Err(Refused::bad(format!("mask request host is not valid: {mask}"))) }
}
