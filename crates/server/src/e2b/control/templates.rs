//! Templates as the control plane knows them.

use axum::{extract::State, http::StatusCode};
use cabana_e2b_wire::TemplateRef;

use super::{
    super::refused::Refused,
    base::{missing, of_operator},
    snapshots,
};
use crate::{App, auth::User, extract::Path};

/// A snapshot is one of them, too.
pub(super) async fn remove(
    State(app): State<App>,
    User(caller): User,
    Path(template): Path<String>,
) -> Result<StatusCode, Refused> {
    let named: TemplateRef = template.parse().map_err(|_| missing(&template))?;
    if snapshots::remove(&app, &caller, &named).await? {
        return Ok(StatusCode::NO_CONTENT);
    }
    match of_operator(&app, &named.name).await? {
        Some(_) => Err(Refused::new(
            StatusCode::FORBIDDEN,
            format!("template '{template}' is the operator's: `cabana template remove` removes it"),
        )),
        None => Err(missing(&template)),
    }
}
