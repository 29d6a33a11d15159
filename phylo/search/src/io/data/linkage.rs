//! How partitions share branch lengths: what a user asks for, against what the models say.

use super::DataError;
use crate::likelihood::{Lengths, PartOptions};
use crate::model::ScalerName;

/// The linkage of branch lengths that a user has asked for and the models' `+B` select; scaled by
/// default.
///
/// # Errors
/// [`DataError::Linkage`].
pub fn linkage(asked: Option<Lengths>, parts: &[PartOptions]) -> Result<Lengths, DataError> {
    let (fitted, given) = (scales(parts, is_fitted), scales(parts, is_given));
    match asked {
        Some(Lengths::Linked) if fitted => Err(DataError::Linkage(
            "+B scales lengths, --brlen linked does not",
        )),
        Some(Lengths::Scaled) if given => Err(DataError::Linkage(
            "--brlen scaled would fit the scalers that +B{…} gives",
        )),
        Some(Lengths::Unlinked) if given || fitted => Err(DataError::Linkage(
            "+B scales lengths that partitions share, --brlen unlinked gives each its own",
        )),
        Some(asked) => Ok(asked),
        // Given scalers are not to be fitted; a single partition has none to fit.
        None if parts.len() == 1 || given => Ok(Lengths::Linked),
        None => Ok(Lengths::Scaled),
    }
}

pub(super) fn scales(parts: &[PartOptions], wanted: fn(&ScalerName) -> bool) -> bool {
    parts.iter().any(|part| wanted(&part.model.name().scaler))
}

/// True of `+B` without a value.
pub(super) fn is_fitted(scaler: &ScalerName) -> bool {
    *scaler == ScalerName::Fitted
}

/// True of `+B{…}`.
pub(super) fn is_given(scaler: &ScalerName) -> bool {
    matches!(scaler, ScalerName::Given(_))
}
