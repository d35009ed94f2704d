//! What files do when nobody inside can be trusted.

#[cfg(test)] // the lint on unwrap knows helpers of tests by this
mod guest {
    mod accounts;
    mod alter;
    mod below;
    mod foreign;
    mod identity;
    mod kit;
    mod layer;
    mod pack;
    mod props;
    mod read;
    mod search;
    mod stat;
    mod tree;
    mod unpack;
    mod walk;
    mod watch;
    mod write;
}
