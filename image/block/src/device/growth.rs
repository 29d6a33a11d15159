//! Grows the cache's memory: touches it before a reader needs it.
//!
//! Why here: the cache does not take its memory before it is used, and a first touch is slow: on a
//! virtual machine 0.2 to 5.4 ms for a huge page, 0.03 ms for the sixteen small pages of a slot of
//! 64 KiB. One read in a hundred of a new device paid for it. So the cache opens with few slots and
//! cycles through them, and this thread touches more and opens them when the cache asks.
//! Must stay true: a request never waits; the thread ends with its device; slots are opened only
//! after their memory was touched (or the kernel is too old to touch it without a write).
//! Any thread may request growth; one thread per device does it.
//! Source: madvise(2), MADV_POPULATE_WRITE.

use super::Device;
use parking_lot::{Condvar, Mutex};
use std::io;
use std::sync::{Arc, Weak};

/// Order to the growth thread, and its wake-up.
#[derive(Debug, Default)]
pub(super) struct Growth {
    order: Mutex<Order>,
    sent: Condvar,
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum Order {
    #[default]
    Wait,
    Grow,
    End,
}

impl Growth {
    /// Asks for more open slots. Does not wait.
    pub(super) fn request(&self) {
        self.send(Order::Grow);
    }

    /// Ends the thread: the device is being dropped.
    pub(super) fn end(&self) {
        self.send(Order::End);
    }

    fn send(&self, new: Order) {
        let mut order = self.order.lock();
        if *order != Order::End {
            *order = new;
        }
        drop(order);
        self.sent.notify_one();
    }

    /// Waits until there is something to do; false at the end.
    fn wait(&self) -> bool {
        let mut order = self.order.lock();
        while *order == Order::Wait {
            self.sent.wait(&mut order);
        }
        if *order == Order::End {
            return false;
        }
        *order = Order::Wait;
        true
    }

    /// Starts the thread that serves the requests of `device`.
    ///
    /// # Errors
    /// When the system gives no thread.
    pub(super) fn start(self: &Arc<Self>, device: Weak<Device>) -> io::Result<()> {
        let growth = Arc::clone(self);
        let grant = move || {
            let mut touched = 0;
            while growth.wait() {
                let Some(device) = device.upgrade() else {
                    return;
                };
                touched = device.grow(touched);
            }
        };
        let thread = std::thread::Builder::new().name("cache-growth".into());
        thread.spawn(grant).map(drop)
    }
}

impl Device {
    /// Touches the open slots behind the first `touched`. If all are touched, opens half as many
    /// again. Returns the number of touched slots.
    fn grow(&self, touched: usize) -> usize {
        let open = self.cache.lock().open();
        let until = match open > touched {
            true => open,
            false => (open + open.div_ceil(2)).min(self.slots.len()),
        };
        let steps = self.slots[touched..until].chunks(STEP_SLOTS);
        let mut done = touched;
        for slots in steps {
            for slot in slots {
                // A locked slot is being filled, and so touched. A refusal means an old kernel or
                // no memory: the reader that takes the slot then faults its pages in.
                if let Some(bytes) = slot.try_read() {
                    let _ = bytes.populate();
                }
            }
            done += slots.len();
            self.cache.lock().open_slots(done);
        }
        done
    }
}

/// Slots that are touched before they are opened together: at 64 KiB, a huge page.
const STEP_SLOTS: usize = 32;
