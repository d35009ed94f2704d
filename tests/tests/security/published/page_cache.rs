//! Files of the host in the memory that host and sandboxes share.

use std::fs;

use crate::{attacks::PAGE_CACHE, inside::Inside};

/// CVE-2016-5195 and CVE-2022-0847 wrote to the page cache of files that may only be read. The lowest layer of the host base is
/// the host's own `/usr`. Where the kernel lets this through, a text changes that is nobody's program.
#[tokio::test]
async fn host_programs_cannot_be_changed_in_the_page_cache() {
    let texts =
        ["/usr/share/common-licenses/GPL-2", "/usr/share/common-licenses/BSD", "/usr/share/perl/5/unicore/version"];
    let text = texts.iter().find(|text| fs::metadata(text).is_ok()).expect("a text of the host");
    let before = fs::read(text).unwrap();
    let inside = Inside::new().await;
    for user in ["user", "root"] {
        let said = inside.attack(user, &PAGE_CACHE, &[text]).await.ok();
        assert!(said.ends_with("piped\nmapped"), "both ways were gone: {said}");
        assert!(fs::read(text).unwrap() == before, "{text} has changed");
    }
    // Root inside may write to its copy, and that is all it changes.
    inside.root(&format!("echo CHANGED > {text} && grep -q CHANGED {text}")).await.ok();
    assert!(fs::read(text).unwrap() == before, "{text} has changed");
    inside.end().await;
}
