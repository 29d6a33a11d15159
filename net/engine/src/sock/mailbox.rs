//! Messages between the engine's thread and the control thread.
//!
//! Why here: both sides need it, and neither needs the other for it. Must stay true: the engine's
//! loop takes a lock only after a flag has reported content. Two threads, ordered only by
//! [`Mailbox`]'s flags.

use sidecore_attach::Segment;
use sidecore_sys::SysError;
use sidecore_sys::local_socket::{self, Peer};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// State of one attachment, shared by the engine loop and the control thread.
#[derive(Debug)]
pub struct Attachment {
    /// The memory that it shares with the engine.
    pub map: Segment,
    /// Chunks to send from, and as many to receive into; 0: it reads frames (`taps.rs`).
    pub chunks: u32,
    /// The attached process.
    pub peer: Peer,
    /// Descriptor that wakes the process, if requested: it waits for other descriptors, too.
    pub wake: Option<OwnedFd>,
    /// Set by either side at the end of the attachment.
    pub gone: AtomicBool,
}

/// A question that only the engine's loop can answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Question {
    /// Its status.
    Status,
    /// Its sessions from this number on, a page of them.
    Sessions(u32),
}

/// Mailbox between the engine's thread and the control thread.
#[derive(Debug)]
pub struct Mailbox {
    flag: AtomicBool,
    arrived: Mutex<Vec<Arc<Attachment>>>,
    asked: AtomicBool,
    question: Mutex<Question>,
    answer: Mutex<Option<String>>,
    control: OwnedFd,
    engine: Arc<OwnedFd>,
}

impl Mailbox {
    /// An empty mailbox, and the descriptor that wakes the engine.
    pub fn new() -> Result<(Arc<Self>, Arc<OwnedFd>), SysError> {
        let engine = Arc::new(local_socket::bell()?);
        let mailbox = Self {
            flag: AtomicBool::new(false),
            arrived: Mutex::new(Vec::new()),
            asked: AtomicBool::new(false),
            question: Mutex::new(Question::Status),
            answer: Mutex::new(None),
            control: local_socket::bell()?,
            engine: Arc::clone(&engine),
        };
        Ok((Arc::new(mailbox), engine))
    }

    pub(crate) fn take_flag(&self) -> bool {
        // A load first: a cache line that no thread writes costs nothing.
        self.is_flagged() && self.flag.swap(false, Ordering::AcqRel)
    }

    pub(crate) fn is_flagged(&self) -> bool {
        self.flag.load(Ordering::Acquire)
    }

    pub(crate) fn take_arrived(&self) -> Vec<Arc<Attachment>> {
        std::mem::take(&mut *self.arrived.lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub(crate) fn is_asked(&self) -> bool {
        self.asked.load(Ordering::Acquire)
    }

    /// Asks the engine; not before it has answered the question before.
    pub(super) fn ask(&self, question: Question) {
        *self.question.lock().unwrap_or_else(PoisonError::into_inner) = question;
        // Set before the bell: an engine that wakes without a flag would sleep again.
        self.asked.store(true, Ordering::Release);
        local_socket::poke(self.engine.as_fd());
    }

    /// The question, if [`Self::is_asked`].
    pub(crate) fn question(&self) -> Question {
        *self.question.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn answer(&self, text: String) {
        // Before the flag is cleared: the control thread may look as soon as it is.
        *self.answer.lock().unwrap_or_else(PoisonError::into_inner) = Some(text);
        self.asked.store(false, Ordering::Release);
        self.poke_control();
    }

    pub(crate) fn poke_control(&self) {
        local_socket::poke(self.control.as_fd());
    }

    /// The engine's answer, once.
    pub(super) fn take_answer(&self) -> Option<String> {
        let mut answer = self.answer.lock().unwrap_or_else(PoisonError::into_inner);
        answer.take()
    }

    /// Passes an attachment to the engine.
    pub(super) fn add_arrived(&self, attachment: Arc<Attachment>) {
        let mut arrived = self.arrived.lock().unwrap_or_else(PoisonError::into_inner);
        arrived.push(attachment);
        // Released before the bell, or the woken engine would wait for the lock.
        drop(arrived);
        self.notify_engine();
    }

    /// Makes the engine check for arrived and ended attachments.
    pub(super) fn notify_engine(&self) {
        self.flag.store(true, Ordering::Release);
        local_socket::poke(self.engine.as_fd());
    }

    /// Descriptor that becomes readable when [`Self::poke_control`] is called.
    pub(super) fn control_bell(&self) -> BorrowedFd<'_> {
        self.control.as_fd()
    }

    pub(super) fn drain_control(&self) {
        local_socket::drain(self.control.as_fd());
    }

    /// The same as [`Self::engine_bell`], to be kept.
    pub(super) fn shared_engine_bell(&self) -> Arc<OwnedFd> {
        Arc::clone(&self.engine)
    }

    /// Descriptor that wakes the engine; every process gets a copy.
    pub(super) fn engine_bell(&self) -> BorrowedFd<'_> {
        self.engine.as_fd()
    }
}
