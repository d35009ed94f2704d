//! A Java program: it has its own resolver's cache, its own TLS and its own authorities.

use cabana_testkit::world::in_world;

use super::{BOTH, OTHER, allowing, listed, open, sites};

const CLIENT: &str = r#"
import java.net.*; import java.net.http.*;
public class Client {
  public static void main(String[] a) throws Exception {
    for (String site : a) {
      var asked = HttpRequest.newBuilder(URI.create("https://" + site + "/hello.txt")).build();
      try {
        System.out.print(site + " " + HttpClient.newHttpClient().send(asked, HttpResponse.BodyHandlers.ofString()).body());
      } catch (ConnectException e) {
        try { InetAddress.getByName(site); } catch (UnknownHostException u) { System.out.println("unknown " + u.getMessage()); }
      }
    }
  }
}
"#;

#[test]
fn a_java_client_reaches_what_is_allowed_and_nothing_else() {
    in_world(async |world| {
        sites(&world);
        let inside = open(&world, listed()).await;
        let prepare = format!(
            "cd /tmp && cat >Client.java <<'EOF'\n{CLIENT}\nEOF\njavac Client.java && keytool -importcert -noprompt \
             -alias own -file $NODE_EXTRA_CA_CERTS -keystore own.p12 -storepass changeit 2>/dev/null"
        );
        inside.user(&prepare).await.ok();
        let run =
            "cd /tmp && java -Djavax.net.ssl.trustStore=own.p12 -Djavax.net.ssl.trustStorePassword=changeit Client";
        for policy in allowing() {
            inside.set(policy).await;
            let said = inside.user(&format!("{run} {}", BOTH.join(" "))).await.ok();
            assert_eq!(said, BOTH.map(|site| format!("{site} hello from the world")).join("\n"));
        }
        let said = inside.user(&format!("{run} {OTHER}")).await.ok();
        assert!(said.starts_with("unknown other.example"), "{said}");
        inside.end().await;
    });
}
