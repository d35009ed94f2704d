//! What can go wrong with the store, by what helps against it.

use cabana_model::Code;

pub type Result<T, E = Error> = std::result::Result<T, E>;

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The disk is full, read-only or broken, or another process holds the database. Nothing was written.
    #[error("the store is not available: {0}")]
    Unavailable(String),
    /// Something is in the database that we never wrote.
    #[error("the store is damaged: {0}")]
    Corrupt(String),
    #[error("the database has schema {found}; this version knows {known}")]
    Schema { found: i64, known: i64 },
    /// What was asked contradicts what is there: an id twice, a call that is not open.
    #[error("the store refuses: {0}")]
    Refused(String),
    #[error("the cursor is none that this list gave out")]
    Cursor,
}

impl Error {
    pub fn code(&self) -> Code {
        match self {
            Self::Unavailable(_) => Code::StoreUnavailable,
            Self::Schema { .. } => Code::DataDirVersion,
            Self::Corrupt(_) | Self::Refused(_) => Code::Internal,
            Self::Cursor => Code::BadRequest,
        }
    }
}

impl From<rusqlite::Error> for Error {
    fn from(error: rusqlite::Error) -> Self {
        use rusqlite::{Error as E, ErrorCode as C};
        match &error {
            E::SqliteFailure(failure, _) => match failure.code {
                C::ConstraintViolation => Self::Refused(error.to_string()),
                C::DatabaseCorrupt | C::NotADatabase => Self::Corrupt(error.to_string()),
                _ => Self::Unavailable(error.to_string()),
            },
            E::FromSqlConversionFailure(..) | E::IntegralValueOutOfRange(..) | E::InvalidColumnType(..) => {
                Self::Corrupt(error.to_string())
            }
            E::ToSqlConversionFailure(_) => Self::Refused(error.to_string()),
            _ => Self::Unavailable(error.to_string()),
        }
    }
}

impl From<std::io::Error> for Error {
    fn from(error: std::io::Error) -> Self {
        Self::Unavailable(error.to_string())
    }
}
