//! Policies by name, as `--policy` writes them.
//!
//! Why here: every command and every test makes its policies from one list.
//! Must stay true: a policy's own name ([`Policy::name`]) is read back as the same policy.

use crate::equi::Equi;
use crate::measured::Measured;
use crate::policy::{Policy, WIDTH_MAX};
use crate::{Edtlp, Hybrid, Linux, Llp, Mgps};

/// The names, `N` standing for engines a loop.
pub const NAMES: [&str; 6] = ["linux", "edtlp", "llp(N)", "hybrid(N)", "mgps", "equi"];

/// Error in a policy's name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PolicyError {
    /// No such name.
    #[error(
        "unknown policy '{name}'; use one of {}, N from 1 to {WIDTH_MAX} engines a loop",
        NAMES.join(", ")
    )]
    Unknown {
        /// The requested name.
        name: String,
    },
}

/// Makes a policy by its name: one of [`NAMES`], with a number for `N`. All but `linux` are capped
/// by their measurements ([`Measured`]).
///
/// ```
/// let policy = sidecore_sched::by_name("hybrid(4)")?;
/// assert_eq!(policy.name(), "hybrid(4)");
/// assert_eq!(policy.live_tasks(8), 2);
/// # Ok::<(), sidecore_sched::PolicyError>(())
/// ```
///
/// # Errors
/// [`PolicyError::Unknown`], which lists the names.
pub fn by_name(name: &str) -> Result<Box<dyn Policy>, PolicyError> {
    let unknown = || PolicyError::Unknown { name: name.into() };
    let (family, width) = match name.trim().strip_suffix(')') {
        None => (name.trim(), None),
        Some(inside) => {
            let (family, number) = inside.split_once('(').ok_or_else(unknown)?;
            let width: u32 = number.trim().parse().map_err(|_| unknown())?;
            if width == 0 || width > WIDTH_MAX {
                return Err(unknown());
            }
            (family, Some(width))
        }
    };
    Ok(match (family, width) {
        ("linux", None) => Box::new(Linux::default()),
        ("edtlp", None) => Box::new(Measured::new(Edtlp)),
        ("llp", Some(width)) => Box::new(Measured::new(Llp::new(width))),
        ("hybrid", Some(width)) => Box::new(Measured::new(Hybrid::new(width))),
        ("mgps", None) => Box::new(Measured::new(Mgps::default())),
        ("equi", None) => Box::new(Equi::default()),
        _ => return Err(unknown()),
    })
}
