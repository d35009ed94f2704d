//! Node's own fetch, which asks no proxy.

use cabana_testkit::world::in_world;

use super::{BOTH, OTHER, allowing, listed, open, sites};

fn fetch(site: &str) -> String {
    let code = format!(
        "fetch(\"https://{site}/hello.txt\").then(a => a.text()).then(t => console.log(t.trim()), \
         e => {{ console.error(String(e.cause)); process.exit(1) }})"
    );
    format!("node -e '{code}'")
}

#[test]
fn nodes_fetch_reaches_what_is_allowed_and_nothing_else() {
    in_world(async |world| {
        sites(&world);
        let inside = open(&world, listed()).await;
        for policy in allowing() {
            inside.set(policy).await;
            for site in BOTH {
                assert_eq!(inside.user(&fetch(site)).await.ok(), "hello from the world", "{site}");
            }
        }
        let told = inside.user(&fetch(OTHER)).await.refused();
        assert!(told.contains("ENOTFOUND other.example"), "{told}");
        inside.end().await;
    });
}
