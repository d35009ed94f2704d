//! E2B's protocol on the wire, for a front that serves E2B's clients and for a client of E2B's own servers.
//!
//! Values in, bytes out, and back: nothing here waits, dials or looks at a clock. There are two planes.
//!
//! - The control plane makes and ends sandboxes. It is JSON over HTTP, in three generations that are all in use: [`control`]
//!   has its bodies, [`Sdk`] tells which generation asks, [`metadata`] reads its filter.
//! - The data plane is a sandbox's own agent. Its calls are those of the Connect protocol in JSON: [`process`] and
//!   [`filesystem`] have the messages, [`envelope`] the frames of streams, [`connect`] the errors. Files are plain HTTP
//!   ([`files`]) and can be reached by a URL alone ([`signature`]). [`interpreter`] is a service beside it that runs code.
//!
//! A [`SandboxHost`] says which port of which sandbox a host name means, and [`header`] the names of the headers that say it
//! where the host does not.
//!
//! What comes in is a stranger's: readers take the spellings that the protocol allows, ignore what they do not know, and bound
//! what they keep. What goes out is what the official SDKs were seen to read.
//!
//! ```
//! use cabana_e2b_wire::{envelope, process::{EndEvent, Output, ProcessEvent, StartEvent, StartRequest, StartResponse}};
//!
//! let asked: StartRequest = serde_json::from_str(r#"{"process": {"cmd": "echo", "args": ["hi"]}, "stdin": false}"#)?;
//! assert!(!asked.keeps_stdin());
//!
//! let mut answer = Vec::new();
//! let events = [
//!     ProcessEvent::Start(StartEvent { pid: 12 }),
//!     Output::Stdout("hi\n".into()).into(),
//!     ProcessEvent::End(EndEvent::exited(0)),
//! ];
//! for event in events {
//!     answer.extend(envelope::message(&StartResponse::from(event))?);
//! }
//! answer.extend(envelope::end(None));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

pub mod connect;
pub mod control;
pub mod envelope;
pub mod files;
pub mod filesystem;
#[cfg(any(fuzzing, test))]
#[doc(hidden)]
pub mod fuzzing;
mod generation;
pub mod header;
mod image_ref;
pub mod interpreter;
mod json;
pub mod metadata;
mod permissions;
pub mod process;
mod proto;
mod sandbox_id;
mod secret;
pub mod signature;
mod template_ref;

pub use generation::{Generation, Language, Sdk};
pub use image_ref::ImageRef;
pub use permissions::permissions;
pub use sandbox_id::{SandboxHost, SandboxId, SandboxIdError};
pub use secret::Secret;
pub use template_ref::{BadTemplateRef, DEFAULT_TAG, TemplateRef, is_plain};
