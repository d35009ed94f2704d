//! The only way out of a sandbox: resolve, check, dial.
//!
//! A sandbox's network namespace has nothing but a loopback. Init makes listeners inside it and hands them out; [`serve`]
//! serves them from outside, where the world is: a transparent redirect for every TCP connection, an inner DNS, an HTTP and a
//! SOCKS proxy. Whatever way a guest takes, it comes to one place (`gateway`), which asks the [`Policy`], resolves a name once
//! through [`Resolve`], judges every address, and dials one of these very addresses through [`Connect`].
//!
//! ```no_run
//! use std::sync::Arc;
//! use cabana_egress::{Config, Event, Listeners, Policy, serve};
//! use cabana_sandbox::NetworkPolicy;
//!
//! # async fn example(listeners: Listeners) -> Result<(), Box<dyn std::error::Error>> {
//! let policy = Policy::new(&NetworkPolicy::Allow(vec!["*.example.com:443".into()]), [])?;
//! let egress = serve(listeners, Config::new(policy, Arc::new(|event: Event| println!("{event:?}"))))?;
//! egress.set_policy(Policy::new(&NetworkPolicy::Off, [])?); // ends what it refuses
//! egress.close().await;
//! # Ok(())
//! # }
//! ```
//!
//! What the guest sends is hostile. Every parser is strict, bounded and free of recursion, every wait has a deadline, every
//! map and queue has a bound, and what cannot be read with certainty is refused. A refusal is a reset on the transparent way,
//! a 403 with its reason on the HTTP way, reply 2 on the SOCKS way, and "no such name" in the DNS; and it is an [`Event`]. A name that
//! leads inside is told as one that does not exist, on every way.
//!
//! The server's own calls to addresses that a tenant named go through a [`Dialer`], which does the same without a sandbox.
//!
//! What it does not do: it looks into no encryption, so two names behind one TLS server name are one to it ([`EncryptedHello`]
//! says what happens to a hello that hides another); it carries no UDP
//! but DNS; it cannot know a network's own NAT64 prefix (give such addresses to [`Policy::new`] as the host's own, or list no
//! name that has them).

mod address;
mod authorities;
mod decision;
mod direct;
mod dns;
mod event;
#[cfg(fuzzing)]
#[doc(hidden)]
pub mod fuzzing;
mod gate;
mod gateway;
mod host;
mod http;
mod late_hello;
mod lookup;
mod outer;
mod outside;
mod pace;
mod policy;
mod queues;
mod relay;
mod resolver;
mod rule;
mod rules;
mod serve;
mod socks;
mod synthetic;
mod tls;
mod transparent;
mod upstream;

pub use address::Class;
pub use authorities::{Authorities, AuthoritiesError};
pub use decision::{Decision, Reason};
pub use direct::{Dialer, Dialers, DialersError, NotReached};
pub use event::{Event, How, Sink};
pub use host::{Host, HostError, Name};
pub use lookup::{HOST_NAME, Lookups};
pub use outer::Outer;
pub use outside::{Connect, Outside, Resolve, ResolveError};
pub use policy::{EncryptedHello, Policy, PolicyError};
pub use queues::{LONG_QUEUES_BYTES, LongQueues, SHORTEST_QUEUES_BYTES};
pub use resolver::NameSources;
pub use rule::RuleError;
pub use serve::{Config, Egress, Limits, Listeners, Original, serve};
pub use transparent::original_destination;
pub use upstream::{Upstream, UpstreamError};
