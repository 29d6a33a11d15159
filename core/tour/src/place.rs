//! The folder in which the page stays.
//!
//! Must stay true: nothing is written through a folder that another user could exchange, unless the
//! user has named it.

use crate::TourError;
use sidecore_sys::folder::{Folder, check_named};
use std::path::{Path, PathBuf};

/// The folder named by the user, or `tour` in the user's state folder of `program`; where that
/// cannot be written to, none: the page then goes to a new folder of temporary files. A missing
/// folder is made.
///
/// # Errors
/// [`TourError::Keep`] where the named one cannot be written to.
pub fn place(named: Option<&Path>, program: &str) -> Result<Option<PathBuf>, TourError> {
    if let Some(named) = named {
        let keep = |source| TourError::Keep {
            path: named.to_owned(),
            source,
        };
        let folder = std::path::absolute(named).map_err(keep)?;
        std::fs::create_dir_all(&folder).map_err(keep)?;
        check_named(&folder.join(PAGE)).map_err(keep)?;
        return Ok(Some(folder));
    }
    let folder_in = |name: &str| {
        let value = std::env::var_os(name).map(PathBuf::from);
        value.filter(|path| path.is_absolute())
    };
    let state = folder_in("XDG_STATE_HOME");
    let state = state.or_else(|| folder_in("HOME").map(|home| home.join(".local/state")));
    let folder = state.map(|state| state.join(program).join("tour"));
    Ok(folder.filter(|folder| {
        Folder::create_trusted(folder, 0o700).is_ok() && check_named(&folder.join(PAGE)).is_ok()
    }))
}

/// The page's file.
pub(crate) const PAGE: &str = "index.html";
