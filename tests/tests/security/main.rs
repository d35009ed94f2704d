//! Real attempts to get out of a sandbox, at a neighbour, or at the process that holds it. Each test is named after what it
//! tries. The attacking programs lie in `attacks/`; each is shown to succeed where the wall is off, so that a refusal is the
//! wall's and not the program's own fault.
#![allow(clippy::unwrap_used, reason = "a test fails by it, at the line that says what was expected")]

mod archives;
mod attacks;
mod bystander;
mod capabilities;
mod crawl;
mod descriptors;
mod endings;
mod exec_paths;
mod exhaustion;
mod filter;
mod fresh;
mod handed;
mod handed_over;
mod held_locks;
mod host_files;
mod host_process;
mod host_state;
mod hostile_files;
mod init;
mod inner_mounts;
mod inside;
mod kernel_calls;
mod kernel_files;
mod lease;
mod magic_links;
mod mounts;
mod named_sockets;
mod namespaces;
mod neighbours;
mod network;
mod network_floods;
mod network_others;
mod network_proxies;
mod privileged_bits;
mod processes;
mod published;
mod resolvers;
mod snapshots;
mod soak_file_races;
mod soak_matrix;
mod socket_options;
mod storm;
mod taken_mounts;
mod terminals;
mod told_by_the_kernel;
mod users;
mod view_contents;
mod views;
