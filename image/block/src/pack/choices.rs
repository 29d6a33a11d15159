//! Frame size, level and goal of an image, where its maker leaves them open.

use super::{Limits, Options};
use crate::codec::Tune;
use crate::format::Format;

/// Bytes of a frame unless another size is wanted: the papers' block.
pub const FRAME_BYTES: u32 = 64 << 10;
/// The same for directories, whose file systems are read in larger pieces.
const TREE_FRAME_BYTES: u32 = 128 << 10;
/// Frame size in bytes and level of small images: 0.96 to 0.97 of squashfs's size. Frames of 512
/// KiB take another 2 to 6 % less, and more time for a small read.
const SMALL_FRAME_BYTES: u32 = 256 << 10;
const SMALL_LEVEL: i32 = 19;

/// The wishes of an image's maker.
#[derive(Debug, Clone, Copy)]
pub struct Wanted {
    /// Its format.
    pub format: Format,
    /// Bytes of a frame.
    pub frame_bytes: Option<u64>,
    /// The codec's level.
    pub level: Option<i32>,
    /// The goal.
    pub tune: Option<Tune>,
    /// Smaller than squashfs, for images that are read in order or seldom.
    pub small: bool,
    /// The source is a directory.
    pub is_tree: bool,
}

/// Wishes that do not go together.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ChoiceError {
    /// Another format than zstd is to be small.
    #[error("--small is about zstd; leave it out, or --format {0}")]
    Small(Format),
    /// No format has such frames.
    #[error("--frame {0}: a frame is at most 1MiB")]
    Frame(u64),
}

impl Wanted {
    /// Decides what was left open, for work by these engines within these bounds.
    ///
    /// # Errors
    /// [`ChoiceError`]. Sizes and levels that a format does not have are refused later, by it.
    pub fn choose(&self, engines: usize, limits: Limits) -> Result<Options, ChoiceError> {
        if self.small && self.format != Format::Zstd {
            return Err(ChoiceError::Small(self.format));
        }
        // cloop's drivers and tools expect the papers' frame size, of directories, too.
        let is_cloop = matches!(self.format, Format::Cloop | Format::CloopLzo);
        let default = match (self.small, self.is_tree && !is_cloop) {
            (true, _) => SMALL_FRAME_BYTES,
            (false, true) => TREE_FRAME_BYTES,
            (false, false) => FRAME_BYTES,
        };
        let frame_bytes = match self.frame_bytes {
            Some(bytes) => u32::try_from(bytes).map_err(|_| ChoiceError::Frame(bytes))?,
            None => default,
        };
        let level = self.level.or(self.small.then_some(SMALL_LEVEL));
        let goal = match self.is_tree || self.small {
            true => Tune::Size,
            false => Tune::Speed,
        };
        Ok(Options {
            format: self.format,
            frame_bytes,
            tune: self.tune.unwrap_or(goal),
            ..Options::zstd(level, engines, limits)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wanted(format: Format, small: bool, is_tree: bool) -> Wanted {
        Wanted {
            format,
            frame_bytes: None,
            level: None,
            tune: None,
            small,
            is_tree,
        }
    }

    fn choose(wanted: &Wanted) -> Result<Options, ChoiceError> {
        wanted.choose(1, Limits::default())
    }

    #[test]
    fn what_is_left_open_depends_on_source_and_format() {
        let chosen = |format, small, is_tree| {
            let chosen = choose(&wanted(format, small, is_tree)).unwrap();
            (chosen.frame_bytes, chosen.level, chosen.tune)
        };
        let usual = (64 << 10, None, Tune::Speed);
        assert_eq!(chosen(Format::Zstd, false, false), usual);
        assert_eq!(chosen(Format::Zstd, false, true).0, 128 << 10);
        assert_eq!(
            chosen(Format::Cloop, false, true),
            (64 << 10, None, Tune::Size)
        );
        assert_eq!(
            chosen(Format::Zstd, true, false),
            (256 << 10, Some(19), Tune::Size)
        );
        let own = Wanted {
            frame_bytes: Some(4096),
            level: Some(3),
            tune: Some(Tune::Speed),
            ..wanted(Format::Zstd, true, true)
        };
        let chosen = choose(&own).unwrap();
        assert_eq!(
            (chosen.frame_bytes, chosen.level, chosen.tune),
            (4096, Some(3), Tune::Speed)
        );
    }

    #[test]
    fn what_does_not_go_together_is_refused() {
        let small = choose(&wanted(Format::Lz4, true, false)).unwrap_err();
        assert!(
            small.to_string().contains("--small is about zstd"),
            "{small}"
        );
        let long = Wanted {
            frame_bytes: Some(1 << 32),
            ..wanted(Format::Zstd, false, false)
        };
        assert!(matches!(choose(&long), Err(ChoiceError::Frame(_))));
    }
}
