//! How the nouns of the model lie in columns: ids as 16 bytes, names as text, times as microseconds, lists as JSON.

use cabana_model::{
    BuildId, BuildState, CallId, EventFilter, KeyId, Phase, Role, SandboxId, SandboxState, Scope, SnapshotId,
    SnapshotState, TaskId, TaskState, TemplateId, Tenant, Time, VolumeId, VolumeName, VolumeState, WebhookId,
};
use rusqlite::{
    Row, ToSql,
    types::{FromSql, FromSqlError, FromSqlResult, ToSqlOutput, ValueRef},
};
use uuid::Uuid;

/// A value on its way into or out of a column.
pub(crate) struct Col<T>(pub(crate) T);

/// The named column as a noun.
pub(crate) fn get<T>(row: &Row<'_>, column: &str) -> rusqlite::Result<T>
where
    Col<T>: FromSql,
{
    row.get::<_, Col<T>>(column).map(|col| col.0)
}

pub(crate) fn maybe<T>(row: &Row<'_>, column: &str) -> rusqlite::Result<Option<T>>
where
    Col<T>: FromSql,
{
    row.get::<_, Option<Col<T>>>(column).map(|col| col.map(|col| col.0))
}

/// Without rows that are damaged: they keep nothing else from being found.
pub(crate) fn readable<T>(
    rows: impl Iterator<Item = rusqlite::Result<T>>,
) -> impl Iterator<Item = rusqlite::Result<T>> {
    use rusqlite::Error as E;
    rows.filter(|row| match row {
        Err(error @ (E::FromSqlConversionFailure(..) | E::IntegralValueOutOfRange(..) | E::InvalidColumnType(..))) => {
            tracing::error!(%error, "a row of the database cannot be read, and is left out");
            false
        }
        _ => true,
    })
}

fn foreign(error: impl std::error::Error + Send + Sync + 'static) -> FromSqlError {
    FromSqlError::Other(Box::new(error))
}

macro_rules! columns {
    ($($name:ty: $into:expr, $from:expr;)*) => {$(
        impl ToSql for Col<&$name> {
            fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
                let into: fn(&$name) -> rusqlite::Result<ToSqlOutput<'_>> = $into;
                into(self.0)
            }
        }

        impl FromSql for Col<$name> {
            fn column_result(value: ValueRef<'_>) -> FromSqlResult<Self> {
                let from: fn(ValueRef<'_>) -> FromSqlResult<$name> = $from;
                from(value).map(Self)
            }
        }
    )*};
}

fn text(text: &str) -> rusqlite::Result<ToSqlOutput<'_>> {
    Ok(ToSqlOutput::Borrowed(ValueRef::Text(text.as_bytes())))
}

fn uuid(id: Uuid) -> rusqlite::Result<ToSqlOutput<'static>> {
    Ok(ToSqlOutput::Owned(id.as_bytes().to_vec().into()))
}

fn uuid_from(value: ValueRef<'_>) -> FromSqlResult<Uuid> {
    Uuid::from_slice(value.as_blob()?).map_err(foreign)
}

fn json<T: serde::Serialize>(value: &T) -> rusqlite::Result<ToSqlOutput<'static>> {
    let text = serde_json::to_string(value);
    text.map(|text| ToSqlOutput::Owned(text.into()))
        .map_err(|error| rusqlite::Error::ToSqlConversionFailure(error.into()))
}

fn json_from<T: serde::de::DeserializeOwned>(value: ValueRef<'_>) -> FromSqlResult<T> {
    serde_json::from_str(value.as_str()?).map_err(foreign)
}

columns! {
    Tenant: |tenant| text(tenant.as_str()), |value| Tenant::new(value.as_str()?).map_err(foreign);
    SandboxId: |id| text(id.as_str()), |value| SandboxId::new(value.as_str()?).map_err(foreign);
    CallId: |id| uuid(id.uuid()), |value| uuid_from(value).map(CallId::from);
    TaskId: |id| uuid(id.uuid()), |value| uuid_from(value).map(TaskId::from);
    KeyId: |id| uuid(id.uuid()), |value| uuid_from(value).map(KeyId::from);
    WebhookId: |id| uuid(id.uuid()), |value| uuid_from(value).map(WebhookId::from);
    SnapshotId: |id| uuid(id.uuid()), |value| uuid_from(value).map(SnapshotId::from);
    TemplateId: |id| uuid(id.uuid()), |value| uuid_from(value).map(TemplateId::from);
    BuildId: |id| uuid(id.uuid()), |value| uuid_from(value).map(BuildId::from);
    BuildState: |state| text(state.as_str()), |value| BuildState::parse(value.as_str()?).ok_or(FromSqlError::InvalidType);
    Time: |time| Ok(time.as_microsecond().into()), |value| Time::from_microsecond(value.as_i64()?).map_err(foreign);
    SandboxState: |state| text(state.as_str()), |value| SandboxState::parse(value.as_str()?).ok_or(FromSqlError::InvalidType);
    Phase: |phase| text(phase.as_str()), |value| Phase::parse(value.as_str()?).ok_or(FromSqlError::InvalidType);
    TaskState: |state| text(state.as_str()), |value| TaskState::parse(value.as_str()?).ok_or(FromSqlError::InvalidType);
    SnapshotState: |state| text(state.as_str()), |value| SnapshotState::parse(value.as_str()?).ok_or(FromSqlError::InvalidType);
    VolumeId: |id| uuid(id.uuid()), |value| uuid_from(value).map(VolumeId::from);
    VolumeName: |name| text(name.as_str()), |value| VolumeName::new(value.as_str()?).map_err(foreign);
    VolumeState: |state| text(state.as_str()), |value| VolumeState::parse(value.as_str()?).ok_or(FromSqlError::InvalidType);
    Uuid: |id| uuid(*id), uuid_from;
    Vec<String>: json, json_from;
    Scope: json, json_from;
    Role: json, json_from;
    EventFilter: json, json_from;
}
