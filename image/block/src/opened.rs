//! An image that is served, with the overlay that takes its writes, to an end in order.
//!
//! Must stay true: acknowledged writes are durable once [`Opened::serve`] returns, whatever else
//! failed, unless closing the overlay failed, too.

use crate::device::Device;
use crate::meter::Meter;
use crate::overlay::{Overlay, OverlayError};
use crate::source::BlockSource;
use std::sync::Arc;

/// A device, with or without an overlay.
pub struct Opened {
    /// The contents: the device's, with the overlay's writes; its reads and writes are counted.
    pub source: Arc<dyn BlockSource>,
    meter: Arc<Meter>,
    overlay: Option<Arc<Overlay>>,
}

impl Opened {
    /// Of a device, and an overlay above it that was opened to be written.
    #[must_use]
    pub fn new(device: Arc<Device>, overlay: Option<Overlay>) -> Self {
        let overlay = overlay.map(Arc::new);
        let meter = Meter::new(device, overlay.clone());
        Self {
            source: Arc::clone(&meter) as _,
            meter,
            overlay,
        }
    }

    /// Counters of the device and of the overlay.
    #[must_use]
    pub fn meter(&self) -> &Arc<Meter> {
        &self.meter
    }

    /// The overlay, where there is one.
    #[must_use]
    pub fn overlay(&self) -> Option<&Arc<Overlay>> {
        self.overlay.as_ref()
    }

    /// Serves it by `work`, and closes the overlay durably behind the last write, also where
    /// serving failed. End the process after it: the image and its engines are left as they are,
    /// since a thread may hang in a source that does not answer.
    ///
    /// # Errors
    /// Those of `work`; [`OverlayError::NotClosed`].
    pub fn serve<E: From<OverlayError>>(
        self,
        work: impl FnOnce(&Self) -> Result<(), E>,
    ) -> Result<(), E> {
        let served = work(&self);
        let closed = match &self.overlay {
            Some(overlay) => overlay.close().map_err(|source| OverlayError::NotClosed {
                source: Box::new(source),
            }),
            None => Ok(()),
        };
        std::mem::forget(self);
        served?;
        closed.map_err(E::from)
    }
}
