//! `cabana config reload`: the server reads its settings again.

use serde_json::{Value, json};

use super::{
    server::{At, Server},
    table,
};
use crate::failure::Failure;

pub(super) async fn work(as_json: bool, server: &Server) -> Result<(), Failure> {
    let told: Value = server.post(At(&["v1", "config:reload"], &[]), &json!({})).await?;
    if as_json {
        table::json(&told);
        return Ok(());
    }
    for (name, says) in [("changed", "is as it is set now"), ("needs_restart", "needs a restart")] {
        for setting in told[name].as_array().into_iter().flatten().filter_map(Value::as_str) {
            table::print(&format!("{setting} {says}\n"));
        }
    }
    Ok(())
}
