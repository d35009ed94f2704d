//! Files that wait for builds.

use cabana_model::retention::Kind;

use super::Pass;
use crate::Result;

impl Pass<'_> {
    pub(super) async fn uploads(&mut self) -> Result<()> {
        let uploads = self.runtime.all_uploads().await;
        uploads.staying.iter().for_each(|file| self.counted(Kind::Uploads).keep(file.bytes));
        for file in uploads.due {
            self.go_on()?;
            let tenant = file.path.parent().and_then(|dir| dir.file_name()).unwrap_or_default();
            self.counted(Kind::Uploads).add(|| tenant.to_string_lossy().into_owned(), file.bytes);
            if !self.dry_run {
                // One that came anew meanwhile goes, too: its client is told that it is not there.
                let _ = tokio::fs::remove_file(&file.path).await;
            }
        }
        Ok(())
    }
}
