//! Wake-ups for threads that wait for an object.

use rustix::event::epoll::{self, EventData, EventFlags};
use sidecore_rdma::Device;
use std::io;
use std::os::fd::OwnedFd;

/// Wakes a waiter: an eventfd in an epoll instance with the device's descriptor, created at the
/// first use.
#[derive(Default)]
pub(crate) struct Bell {
    descriptors: Option<(OwnedFd, OwnedFd)>,
    is_armed: bool,
    has_rung: bool,
}

impl Bell {
    /// The descriptor to wait for.
    pub(crate) fn descriptor(&mut self, device: &Device) -> io::Result<&OwnedFd> {
        // Programs that only poll never ask for a descriptor, and pay for none.
        if self.descriptors.is_none() {
            let flags =
                rustix::event::EventfdFlags::CLOEXEC | rustix::event::EventfdFlags::NONBLOCK;
            let bell = rustix::event::eventfd(0, flags)?;
            // One descriptor for two sources: the network, and other threads of the program.
            let both = epoll::create(epoll::CreateFlags::CLOEXEC)?;
            epoll::add(&both, &bell, EventData::new_u64(0), EventFlags::IN)?;
            if let Some(descriptor) = device.descriptor() {
                epoll::add(&both, descriptor, EventData::new_u64(1), EventFlags::IN)?;
            }
            self.descriptors = Some((bell, both));
        }
        let both = self.descriptors.as_ref().map(|(_, both)| both);
        both.ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    /// The eventfd alone.
    pub(crate) fn own(&self) -> Option<&OwnedFd> {
        self.descriptors.as_ref().map(|(bell, _)| bell)
    }

    pub(crate) fn arm(&mut self) {
        self.is_armed = true;
    }

    /// Wakes all waiters.
    pub(crate) fn ring(&mut self) {
        // A write for each completion would cost more than the completion: one is enough until the
        // bell is calmed.
        if self.is_armed
            && !self.has_rung
            && let Some((bell, _)) = &self.descriptors
        {
            rustix::io::write(bell, &1_u64.to_ne_bytes()).ok();
            self.has_rung = true;
        }
    }

    /// Clears it: there are no events any more.
    pub(crate) fn calm(&mut self) {
        self.is_armed = false;
        // Only what was written is read: the descriptor is not blocking, but a call is not free.
        if std::mem::take(&mut self.has_rung)
            && let Some((bell, _)) = &self.descriptors
        {
            rustix::io::read(bell, &mut [0; 8]).ok();
        }
    }
}

/// An object that a thread waits for.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Waiter {
    Cq(usize),
    Cntr(usize),
    Eq(usize),
}
