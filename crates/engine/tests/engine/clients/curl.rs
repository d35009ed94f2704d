//! curl, over the redirect and over the proxies.

use cabana_testkit::world::in_world;

use super::{BOTH, FOUR_ADDRESS, SIX_ADDRESS, allowing, listed, open, sites};

#[test]
fn curl_reaches_what_is_allowed_over_both_families_inside_and_outside() {
    in_world(async |world| {
        sites(&world);
        let inside = open(&world, listed()).await;
        for policy in allowing() {
            inside.set(policy).await;
            for site in BOTH {
                for family in ["-4", "-6"] {
                    let got = inside.user(&format!("curl {family} -sS https://{site}/hello.txt")).await.ok();
                    assert_eq!(got, "hello from the world", "{site} {family}");
                }
                for proxy in ["http://127.0.0.1:65502", "http://[::1]:65502", "socks5h://127.0.0.1:65503"] {
                    let got = inside.user(&format!("curl -x {proxy} -sS https://{site}/hello.txt")).await.ok();
                    assert_eq!(got, "hello from the world", "{site} {proxy}");
                }
            }
        }
        inside.end().await;
    });
}

#[test]
fn curl_reaches_public_addresses_without_a_name() {
    in_world(async |world| {
        sites(&world);
        let inside = open(&world, cabana_sandbox::NetworkPolicy::Public).await;
        for host in [FOUR_ADDRESS.to_owned(), format!("[{SIX_ADDRESS}]")] {
            let got = inside.user(&format!("curl -ksS https://{host}/hello.txt")).await.ok();
            assert_eq!(got, "hello from the world", "{host}");
        }
        inside.set(listed()).await;
        for host in [FOUR_ADDRESS.to_owned(), format!("[{SIX_ADDRESS}]")] {
            let told = inside.user(&format!("curl -ksS https://{host}/hello.txt")).await.refused();
            // The reset comes while it connects, or while it begins to speak.
            assert!(["curl: (7)", "curl: (35)", "curl: (56)"].iter().any(|code| told.starts_with(code)), "{told}");
        }
        inside.end().await;
    });
}

#[test]
fn curl_is_told_why_another_site_is_refused() {
    in_world(async |world| {
        sites(&world);
        let inside = open(&world, listed()).await;
        let told = inside.user("curl -sS https://other.example/hello.txt").await.refused();
        assert!(told.contains("Could not resolve host: other.example"), "{told}");
        let told = inside.user("curl -sS -x http://127.0.0.1:65502 https://other.example/").await.refused();
        assert!(told.contains("403"), "{told}");
        let page = inside.user("curl -sS -x http://127.0.0.1:65502 http://other.example/").await.ok();
        assert!(page.contains("no rule of the allow-list covers it") && page.contains("Add this host"), "{page}");
        let told = inside.user("curl -sS -x socks5h://127.0.0.1:65503 https://other.example/").await.refused();
        assert!(told.contains("complete SOCKS5 connection"), "{told}");
        inside.end().await;
    });
}
