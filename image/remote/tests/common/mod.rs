//! Helpers shared by the tests.

#![allow(clippy::unwrap_used, dead_code)] // Helper functions of tests; none uses all of them.

pub(crate) mod server;

use sidecore_block::codec::Tune;
use sidecore_block::device::{Device, DeviceConfig};
use sidecore_block::format::Format;
use sidecore_block::image::Image;
use sidecore_block::inner::Kind;
use sidecore_block::pack::{Existing, Options, Source, Target, pack};
use sidecore_offload::{Pool, PoolConfig};
use sidecore_random::Random;
use sidecore_remote::{Location, RemoteImage, Retry};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// The image of `raw`, with content-defined frame boundaries or fixed ones.
pub(crate) fn image_of(raw: &[u8], format: Format, frame_bytes: u32, cdc: bool) -> Vec<u8> {
    let directory = tempfile::tempdir().unwrap();
    let (source, image) = (directory.path().join("raw"), directory.path().join("image"));
    std::fs::write(&source, raw).unwrap();
    let source = Source::open(&source, Kind::Erofs, Path::new("/tmp")).unwrap();
    let options = Options {
        format,
        frame_bytes,
        level: (format != Format::Raw).then_some(1),
        tune: Tune::Speed,
        cdc,
        engines: 2,
        thin: Default::default(),
        limits: Default::default(),
    };
    let target = Target::Path(&image, Existing::Replace);
    pack(source, target, &options, &mut |_| ()).unwrap();
    std::fs::read(&image).unwrap()
}

/// Contents that compress to about half, with a hole, and the image of them.
pub(crate) fn packed(bytes: usize, format: Format, frame_bytes: u32) -> (Vec<u8>, Vec<u8>) {
    let mut random = Random::new(bytes as u64);
    let mut raw = vec![0; bytes];
    for (at, chunk) in raw.chunks_mut(16).enumerate() {
        if !(bytes / 64..bytes / 48).contains(&at) {
            let word = random.bits().to_le_bytes();
            chunk
                .iter_mut()
                .zip(word)
                .for_each(|(byte, new)| *byte = new);
        }
    }
    let image = image_of(&raw, format, frame_bytes, false);
    (raw, image)
}

/// Retries that do not wait.
pub(crate) fn eager() -> Retry {
    Retry {
        attempts: 4,
        pause_first: Duration::from_millis(1),
        pause_max: Duration::from_millis(2),
        attempt_max: Duration::from_secs(20),
    }
}

pub(crate) fn options() -> sidecore_remote::Options {
    sidecore_remote::Options {
        retry: eager(),
        ..Default::default()
    }
}

pub(crate) fn open(url: &str, options: sidecore_remote::Options) -> Arc<RemoteImage> {
    let location = Location::parse(url).unwrap().unwrap();
    RemoteImage::open(&location, options).unwrap()
}

pub(crate) fn device(image: &Arc<RemoteImage>) -> Arc<Device> {
    let pool = Pool::start(PoolConfig {
        engines: 2,
        ..PoolConfig::default()
    });
    let image = Image::Remote(Arc::clone(image) as _);
    Device::open(image, Arc::new(pool.unwrap()), DeviceConfig::default()).unwrap()
}
