//! The house rules that no compiler and no lint knows, held over the workspace as it lies on disk.
//!
//! Each rule is a small function from text to the list of its breaches, so that it can be shown to fail on a bad sample;
//! the test beside it applies it to the real thing and expects no breach.

mod arrows;
mod cves;
mod lexer;
mod manifests;
mod pages;
mod readme;
mod resolvers;
mod sources;
mod workspace;
