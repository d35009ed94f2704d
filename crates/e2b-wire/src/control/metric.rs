//! What a sandbox used at one moment. Sizes are in bytes.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

/// One of `GET /sandboxes/{id}/metrics`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SandboxMetric {
    pub timestamp: Timestamp,
    /// The same in seconds since 1970.
    pub timestamp_unix: i64,
    pub cpu_count: u32,
    pub cpu_used_pct: f64,
    pub mem_used: u64,
    pub mem_total: u64,
    pub mem_cache: u64,
    pub disk_used: u64,
    pub disk_total: u64,
}

/// `GET /sandboxes/metrics`: the last one of each, by the sandbox's id.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SandboxesWithMetrics {
    pub sandboxes: BTreeMap<String, SandboxMetric>,
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_metric_reads_back() {
        let json = json!({
            "timestamp": "2026-11-17T02:00:00Z", "timestampUnix": 1_794_880_800, "cpuCount": 2, "cpuUsedPct": 12.5,
            "memUsed": 1, "memTotal": 2, "memCache": 3, "diskUsed": 4, "diskTotal": 5,
        });
        let metric: SandboxMetric = serde_json::from_value(json.clone()).unwrap();
        assert_eq!(metric.timestamp.as_second(), metric.timestamp_unix);
        assert_eq!(serde_json::to_value(metric).unwrap(), json);
        let all = SandboxesWithMetrics { sandboxes: [("iabc".to_owned(), metric)].into() };
        assert_eq!(serde_json::to_value(all).unwrap(), json!({"sandboxes": {"iabc": json}}));
    }
}
