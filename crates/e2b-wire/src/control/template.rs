//! Templates: made, built step by step, tagged, found by a name.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::LogLevel;
use crate::{Secret, json::or_default};

/// `POST /v3/templates`
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NewTemplate {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    #[serde(default, deserialize_with = "or_default", skip_serializing_if = "Vec::is_empty")]
    pub tags: Vec<String>,
    /// What older clients call the name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub alias: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu_count: Option<u32>,
    #[serde(default, rename = "memoryMB", skip_serializing_if = "Option::is_none")]
    pub memory_mb: Option<u32>,
}

impl NewTemplate {
    /// By whichever word it was given.
    pub fn name(&self) -> Option<&str> {
        self.name.as_deref().or(self.alias.as_deref())
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NewTemplateAnswer {
    #[serde(rename = "templateID")]
    pub template_id: String,
    #[serde(rename = "buildID")]
    pub build_id: String,
    pub public: bool,
    pub names: Vec<String>,
    pub tags: Vec<String>,
    pub aliases: Vec<String>,
}

/// `GET /templates/aliases/{alias}`
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TemplateAlias {
    #[serde(rename = "templateID")]
    pub template_id: String,
    pub public: bool,
}

/// `GET /templates/{id}/files/{hash}`: whether the files of a step are there, or where to put them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileUpload {
    pub present: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
}

/// `POST /v2/templates/{id}/builds/{build}`
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct BuildStart {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from_image: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from_template: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from_image_registry: Option<ImageRegistry>,
    /// Use nothing that was built before.
    #[serde(default, deserialize_with = "or_default")]
    pub force: bool,
    #[serde(default, deserialize_with = "or_default")]
    pub steps: Vec<Step>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start_cmd: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ready_cmd: Option<String>,
}

/// How to log in where the image is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "lowercase", rename_all_fields = "camelCase")]
pub enum ImageRegistry {
    Aws { aws_access_key_id: String, aws_secret_access_key: Secret, aws_region: String },
    Gcp { service_account_json: Secret },
    Registry { username: String, password: Secret },
}

/// `RUN`, `COPY`, `ENV`, `WORKDIR`, `USER`, with arguments of its own each.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Step {
    pub r#type: String,
    #[serde(default, deserialize_with = "or_default")]
    pub args: Vec<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub files_hash: Option<String>,
    #[serde(default, deserialize_with = "or_default")]
    pub force: bool,
}

/// `GET /templates/{id}/builds/{build}/status`
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct BuildInfo {
    #[serde(default, deserialize_with = "or_default")]
    pub logs: Vec<String>,
    #[serde(default, deserialize_with = "or_default")]
    pub log_entries: Vec<BuildLogEntry>,
    #[serde(rename = "templateID")]
    pub template_id: String,
    #[serde(rename = "buildID")]
    pub build_id: String,
    pub status: BuildStatus,
    /// Of one that failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<BuildReason>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum BuildStatus {
    Building,
    Waiting,
    Ready,
    Error,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BuildLogEntry {
    pub timestamp: Timestamp,
    pub message: String,
    pub level: LogLevel,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct BuildReason {
    pub message: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step: Option<String>,
    #[serde(default, deserialize_with = "or_default", skip_serializing_if = "Vec::is_empty")]
    pub log_entries: Vec<BuildLogEntry>,
}

/// `POST /templates/tags`; the target is `name:tag`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AssignTags {
    pub target: String,
    pub tags: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AssignedTags {
    pub tags: Vec<String>,
    #[serde(rename = "buildID")]
    pub build_id: String,
}

/// `DELETE /templates/tags`
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RemoveTags {
    pub name: String,
    pub tags: Vec<String>,
}

/// One of `GET /templates/{id}/tags`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TemplateTag {
    pub tag: String,
    #[serde(rename = "buildID")]
    pub build_id: String,
    pub created_at: Timestamp,
}

/// One of `GET /templates`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Template {
    #[serde(rename = "templateID")]
    pub template_id: String,
    /// Of the last one, if there was any.
    #[serde(rename = "buildID")]
    pub build_id: String,
    pub cpu_count: u32,
    #[serde(rename = "memoryMB")]
    pub memory_mb: u32,
    #[serde(rename = "diskSizeMB")]
    pub disk_size_mb: u32,
    pub public: bool,
    pub aliases: Vec<String>,
    pub names: Vec<String>,
    pub created_at: Timestamp,
    pub updated_at: Timestamp,
    /// Nobody is told of: null, but there.
    pub created_by: Option<()>,
    pub last_spawned_at: Option<Timestamp>,
    pub spawn_count: i64,
    pub build_count: u32,
    pub envd_version: String,
    pub build_status: BuildStatus,
}

/// `GET /templates/{id}`
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TemplateWithBuilds {
    #[serde(rename = "templateID")]
    pub template_id: String,
    pub public: bool,
    pub aliases: Vec<String>,
    pub names: Vec<String>,
    pub created_at: Timestamp,
    pub updated_at: Timestamp,
    pub last_spawned_at: Option<Timestamp>,
    pub spawn_count: i64,
    pub builds: Vec<TemplateBuild>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct TemplateBuild {
    #[serde(rename = "buildID")]
    pub build_id: String,
    pub status: BuildStatus,
    pub created_at: Timestamp,
    pub updated_at: Timestamp,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub finished_at: Option<Timestamp>,
    pub cpu_count: u32,
    #[serde(rename = "memoryMB")]
    pub memory_mb: u32,
}

#[cfg(test)]
mod tests {
    use serde::de::DeserializeOwned;
    use serde_json::{Value, json};

    use super::*;

    /// Reads it, and expects the same when it is written.
    fn same<T: Serialize + DeserializeOwned>(json: &Value) -> T {
        let read = T::deserialize(json).unwrap();
        assert_eq!(serde_json::to_value(&read).unwrap(), *json);
        read
    }

    #[test]
    fn a_template_is_asked_for_by_name_or_alias() {
        let new: NewTemplate = same(&json!({"name": "x", "tags": ["v1"], "cpuCount": 2, "memoryMB": 512}));
        assert_eq!((new.name(), new.memory_mb), (Some("x"), Some(512)));
        let older: NewTemplate = serde_json::from_value(json!({"alias": "y", "tags": null, "teamID": "t"})).unwrap();
        assert_eq!(older.name(), Some("y"));
    }

    #[test]
    fn a_new_template_has_all_that_clients_insist_on() {
        same::<NewTemplateAnswer>(&json!({
            "templateID": "t", "buildID": "b", "public": false, "names": ["x"], "tags": [], "aliases": [],
        }));
        same::<TemplateAlias>(&json!({"templateID": "t", "public": false}));
    }

    #[test]
    fn a_build_has_steps() {
        let build: BuildStart = same(&json!({
            "fromImage": "ubuntu:24.04", "force": false, "startCmd": "sleep 1", "readyCmd": "true",
            "steps": [
                {"type": "RUN", "args": ["apt update", "root"], "force": false},
                {"type": "COPY", "args": ["src", "dst", "", ""], "filesHash": "abc", "force": true},
            ],
        }));
        assert_eq!(build.steps[1].files_hash.as_deref(), Some("abc"));
        let bare: BuildStart =
            serde_json::from_value(json!({"fromTemplate": "base", "steps": [{"type": "RUN"}]})).unwrap();
        assert_eq!(bare.steps[0].args, Vec::<String>::new());
    }

    #[test]
    fn each_registry_has_its_own_way_in() {
        let registries = [
            json!({"type": "aws", "awsAccessKeyId": "k", "awsSecretAccessKey": "hush", "awsRegion": "eu"}),
            json!({"type": "gcp", "serviceAccountJson": "{hush}"}),
            json!({"type": "registry", "username": "u", "password": "hush"}),
        ];
        for json in registries {
            let registry: ImageRegistry = same(&json);
            assert!(!format!("{registry:?}").contains("hush"));
        }
        serde_json::from_value::<ImageRegistry>(json!({"type": "other"})).unwrap_err();
    }

    #[test]
    fn a_build_tells_how_far_it_is() {
        let entry = json!({"timestamp": "2026-11-17T02:00:00Z", "message": "RUN x", "level": "info", "step": "1"});
        let info: BuildInfo = same(&json!({
            "logs": ["RUN x"], "logEntries": [entry], "templateID": "t", "buildID": "b", "status": "error",
            "reason": {"message": "exit status 1", "step": "1", "logEntries": [entry]},
        }));
        assert_eq!(info.status, BuildStatus::Error);
        same::<BuildInfo>(
            &json!({"logs": [], "logEntries": [], "templateID": "t", "buildID": "b", "status": "building"}),
        );
    }

    #[test]
    fn files_are_there_or_have_a_place_to_go() {
        same::<FileUpload>(&json!({"present": true}));
        same::<FileUpload>(&json!({"present": false, "url": "https://sbx.test/upload"}));
    }

    #[test]
    fn a_template_has_all_that_clients_insist_on() {
        let at = "2026-11-17T02:00:00Z";
        same::<Template>(&json!({
            "templateID": "t", "buildID": "b", "cpuCount": 2, "memoryMB": 512, "diskSizeMB": 0, "public": false,
            "aliases": ["x"], "names": ["x"], "createdAt": at, "updatedAt": at, "createdBy": null, "lastSpawnedAt": null,
            "spawnCount": 0, "buildCount": 1, "envdVersion": "0.6.13", "buildStatus": "ready",
        }));
        let build = json!({
            "buildID": "b", "status": "error", "createdAt": at, "updatedAt": at, "finishedAt": at, "cpuCount": 2, "memoryMB": 512,
        });
        same::<TemplateWithBuilds>(&json!({
            "templateID": "t", "public": false, "aliases": ["x"], "names": ["x"], "createdAt": at, "updatedAt": at,
            "lastSpawnedAt": null, "spawnCount": 0, "builds": [build],
        }));
    }

    #[test]
    fn tags_are_assigned_listed_and_removed() {
        same::<AssignTags>(&json!({"target": "x:v1", "tags": ["stable"]}));
        same::<AssignedTags>(&json!({"tags": ["stable"], "buildID": "b"}));
        same::<RemoveTags>(&json!({"name": "x", "tags": ["stable"]}));
        same::<TemplateTag>(&json!({"tag": "stable", "buildID": "b", "createdAt": "2026-11-17T02:00:00Z"}));
    }
}
