//! The intercepted functions: those that the program would have called, and the memory that the
//! messages of sendmsg(2) and recvmsg(2) refer to.

use sidecore_bare::width::ToUsize;
use sidecore_net_rings::datagram::{FRAME_BYTES, Frame, NAME_BYTES};
use sidecore_sys::control_message::ControlMessages;
use std::ffi::{CStr, c_int, c_long, c_uint, c_void};
use std::ptr;
use std::sync::atomic::{AtomicUsize, Ordering};

/// One function of the C library, looked up once.
#[derive(Debug)]
pub(crate) struct Real {
    name: &'static CStr,
    found: AtomicUsize,
}

impl Real {
    pub(crate) const fn new(name: &'static CStr) -> Self {
        Self {
            name,
            found: AtomicUsize::new(0),
        }
    }

    /// Its address. The process ends if there is none: it cannot continue.
    pub(crate) fn address(&self) -> *const c_void {
        // Relaxed: all threads look up the same address.
        let found = self.found.load(Ordering::Relaxed);
        if found != 0 {
            return found as *const c_void;
        }
        // SAFETY: dlsym(3) takes a name that ends with a zero.
        let found = unsafe { libc::dlsym(libc::RTLD_NEXT, self.name.as_ptr()) };
        // The C library has all of them; a program without one cannot go on.
        if found.is_null() {
            std::process::abort();
        }
        self.found.store(found as usize, Ordering::Relaxed);
        found
    }
}

/// Calls the next function with a name, with the given argument types and result.
macro_rules! real {
    ($name:ident($($argument:expr => $kind:ty),* $(,)?) -> $result:ty) => {{
        static REAL: $crate::real::Real =
            $crate::real::Real::new(match std::ffi::CStr::from_bytes_with_nul(
                concat!(stringify!($name), "\0").as_bytes(),
            ) {
                Ok(name) => name,
                Err(_) => panic!("a name ends with a zero"),
            });
        let function: unsafe extern "C" fn($($kind),*) -> $result = {
            // SAFETY: the function of that name has this type, by the C library's headers.
            unsafe { std::mem::transmute(REAL.address()) }
        };
        // SAFETY: the arguments are the program's, or ours that live as long as the call.
        unsafe { function($($argument),*) }
    }};
}
pub(crate) use real;

/// errno of the last call.
pub(crate) fn errno() -> c_int {
    // SAFETY: it points to a number of this thread's.
    unsafe { *libc::__errno_location() }
}

/// Sets errno for the program.
pub(crate) fn set_errno(errno: c_int) {
    // SAFETY: as above.
    unsafe { *libc::__errno_location() = errno };
}

/// The flags of a descriptor by fcntl(2), which is `F_GETFD` or `F_GETFL`; none if there is none.
/// Not by the C library's function, which is this library's own.
pub(crate) fn flags_of(descriptor: c_int, which: c_int) -> Option<c_int> {
    let before = errno();
    // SAFETY: a call without pointers.
    let flags = unsafe { libc::syscall(libc::SYS_fcntl, descriptor, which) };
    set_errno(before);
    int(flags).filter(|flags| *flags >= 0)
}

/// The result of a system call, if the C library has it as an int.
pub(crate) fn int(result: c_long) -> Option<c_int> {
    c_int::try_from(result).ok()
}

/// A length as socket calls take it.
pub(crate) const fn length(bytes: usize) -> libc::socklen_t {
    bytes as libc::socklen_t
}

/// A number of descriptors or events, as calls return it: it never exceeds what the program passed.
pub(crate) fn count(number: usize) -> c_int {
    c_int::try_from(number).unwrap_or(c_int::MAX)
}

/// ioctl(2) for the number of readable bytes; its type differs between C libraries.
pub(crate) const FIONREAD: libc::c_ulong = 0x541b;

/// True unless the length of the name is one that the kernel refuses.
pub(crate) fn has_sound_name(header: &libc::msghdr) -> bool {
    let is_nowhere = !header.msg_name.is_null() && is_in_first_page(header.msg_name.addr());
    !is_nowhere && c_int::try_from(header.msg_namelen).is_ok()
}

/// Moves what was received into the places of an earlier message, which was dropped.
///
/// # Safety
/// Both headers are the program's, and the kernel has written `from`.
#[cold]
pub(crate) unsafe fn move_message(from: &mut libc::mmsghdr, to: &libc::msghdr) {
    let mut payload = Vec::new();
    let (header, mut left) = (&mut from.msg_hdr, from.msg_len.to_usize());
    // SAFETY: by the caller; the kernel has just read the pieces.
    unsafe {
        for piece in pieces_of(header) {
            let here = piece.iov_len.min(left);
            payload.extend_from_slice(bytes_at(piece.iov_base.cast(), here));
            left -= here;
        }
        let mut rest = payload.as_slice();
        for piece in pieces_of(to) {
            let (now, later) = rest.split_at(piece.iov_len.min(rest.len()));
            ptr::copy_nonoverlapping(now.as_ptr(), piece.iov_base.cast::<u8>(), now.len());
            rest = later;
        }
        if !rest.is_empty() {
            header.msg_flags |= libc::MSG_TRUNC;
            from.msg_len = from
                .msg_len
                .saturating_sub(count(rest.len()).cast_unsigned());
        }
        let control = bytes_at(header.msg_control.cast(), header.msg_controllen as _);
        let room: usize = to.msg_controllen as _;
        if control.len() <= room && !control.is_empty() {
            ptr::copy(control.as_ptr(), to.msg_control.cast::<u8>(), control.len());
        } else if !control.is_empty() {
            header.msg_flags |= libc::MSG_CTRUNC;
            header.msg_controllen = 0;
        }
        header.msg_control = to.msg_control;
    }
}

/// True if a message is for its socket's peer.
pub(crate) fn has_no_name(header: &libc::msghdr) -> bool {
    header.msg_name.is_null() || header.msg_namelen == 0
}

/// A message of pieces, without anything else.
pub(crate) fn message_of(pieces: &[libc::iovec]) -> libc::msghdr {
    // SAFETY: zeros are an empty message.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = pieces.as_ptr().cast_mut();
    // Its type differs between C libraries.
    message.msg_iovlen = pieces.len() as _;
    message
}

/// The control messages of a message; an error if they exceed the kernel's limit.
pub(crate) fn control(header: &libc::msghdr) -> Result<&[u8], c_int> {
    // Its type differs between C libraries.
    let bytes: usize = header.msg_controllen as _;
    if header.msg_control.is_null() {
        return Ok(&[]);
    }
    if bytes > CONTROL_BYTES_MAX {
        return Err(libc::ENOBUFS);
    }
    // SAFETY: the program guarantees this number of bytes.
    Ok(unsafe { std::slice::from_raw_parts(header.msg_control.cast(), bytes) })
}

/// The descriptors that control messages pass on (SCM_RIGHTS).
pub(crate) fn descriptors_in(control: &[u8]) -> Vec<c_int> {
    let rights = ControlMessages::new(control)
        .filter(|it| (it.level, it.kind) == (libc::SOL_SOCKET, libc::SCM_RIGHTS));
    let numbers = rights.flat_map(|it| control[it.value].as_chunks().0);
    numbers.map(|it| c_int::from_ne_bytes(*it)).collect()
}

/// The pieces of a message.
///
/// # Safety
/// The program says that they are there.
pub(crate) unsafe fn pieces_of(header: &libc::msghdr) -> &[libc::iovec] {
    let count: usize = header.msg_iovlen as _;
    if count == 0 || is_in_first_page(header.msg_iov.addr()) {
        return &[];
    }
    // SAFETY: by the caller.
    unsafe { std::slice::from_raw_parts(header.msg_iov, count) }
}

/// The number of bytes of a message; none if the kernel refuses it.
///
/// # Safety
/// As for [`pieces_of`].
pub(crate) unsafe fn whole_of(header: &libc::msghdr) -> Option<usize> {
    let count: usize = header.msg_iovlen as _;
    if count > KERNELS_PIECES_MAX || count > 0 && is_in_first_page(header.msg_iov.addr()) {
        return None;
    }
    // SAFETY: by the caller.
    let mut pieces = unsafe { pieces_of(header) }.iter();
    pieces.try_fold(0_usize, |sum, piece| sum.checked_add(piece.iov_len))
}

/// Bytes of the program's.
///
/// # Safety
/// They are there, and do not change meanwhile.
pub(crate) unsafe fn bytes_at<'p>(start: *const u8, count: usize) -> &'p [u8] {
    if count == 0 || start.is_null() {
        return &[];
    }
    // SAFETY: by the caller.
    unsafe { std::slice::from_raw_parts(start, count) }
}

/// Bytes of each datagram that the control messages ask for (UDP_SEGMENT), 0 without any; none if
/// there are others.
///
/// # Safety
/// The header is the program's.
pub(crate) unsafe fn segment_of(header: &libc::msghdr) -> Option<u16> {
    let bytes: usize = header.msg_controllen as _;
    if bytes == 0 {
        return Some(0);
    }
    if bytes > SEGMENT_CONTROL_BYTES_MAX || is_in_first_page(header.msg_control.addr()) {
        return None;
    }
    // SAFETY: by the caller.
    let control = unsafe { bytes_at(header.msg_control.cast(), bytes) };
    let only = ControlMessages::new(control).next()?;
    let is_segment = (only.level, only.kind) == (libc::SOL_UDP, libc::UDP_SEGMENT);
    let segment = control.get(only.value)?;
    if !is_segment || segment.len() != 2 || only.whole.end != bytes {
        return None;
    }
    Some(u16::from_ne_bytes(*segment.first_chunk()?)).filter(|bytes| *bytes > 0)
}

/// A message to the supervisor's desk: a frame, and a program's pieces behind it.
#[derive(Clone, Copy)]
pub(crate) struct Framed {
    frame: [u8; FRAME_BYTES],
    /// The first one is the frame's.
    pieces: [libc::iovec; PIECES_MAX + 1],
    /// Number of pieces; 0: it is not one.
    count: usize,
    desk: [u8; NAME_BYTES],
    desk_bytes: usize,
}

impl Framed {
    pub(crate) const EMPTY: Self = Self {
        frame: [0; FRAME_BYTES],
        pieces: [libc::iovec {
            iov_base: ptr::null_mut(),
            iov_len: 0,
        }; PIECES_MAX + 1],
        count: 0,
        desk: [0; NAME_BYTES],
        desk_bytes: 0,
    };

    /// These pieces behind a frame, for the desk with this name; none if they are too many.
    pub(crate) fn of(
        frame: Frame,
        pieces: &[libc::iovec],
        (desk, desk_bytes): ([u8; NAME_BYTES], usize),
    ) -> Option<Self> {
        let mut made = Self {
            frame: frame.bytes(),
            count: pieces.len() + 1,
            desk,
            desk_bytes,
            ..Self::EMPTY
        };
        made.pieces
            .get_mut(1..=pieces.len())?
            .copy_from_slice(pieces);
        Some(made)
    }

    /// Its header, which refers to it.
    pub(crate) fn header(&mut self) -> libc::msghdr {
        self.pieces[0] = libc::iovec {
            iov_base: self.frame.as_mut_ptr().cast(),
            iov_len: FRAME_BYTES,
        };
        // SAFETY: zeros are an empty message.
        let mut header: libc::msghdr = unsafe { std::mem::zeroed() };
        header.msg_name = self.desk.as_mut_ptr().cast();
        header.msg_namelen = length(self.desk_bytes);
        header.msg_iov = self.pieces.as_mut_ptr();
        header.msg_iovlen = self.count as _;
        header
    }

    /// Bytes that are not the program's.
    pub(crate) fn frame_bytes(&self) -> c_uint {
        if self.count == 0 {
            return 0;
        }
        FRAME_BYTES as c_uint
    }
}

/// True for a null pointer, or nearly one.
pub(crate) fn is_in_first_page(address: usize) -> bool {
    address < FIRST_PAGE
}

/// Addresses below this are never mapped (`vm.mmap_min_addr`).
const FIRST_PAGE: usize = 4096;
/// Control messages among which a segment's length is looked for.
const SEGMENT_CONTROL_BYTES_MAX: usize = 64;
/// Bytes of control messages (`net.core.optmem_max`).
const CONTROL_BYTES_MAX: usize = 128 << 10;
/// Pieces of a program behind a frame.
const PIECES_MAX: usize = 4;
/// Pieces of any message (UIO_MAXIOV).
const KERNELS_PIECES_MAX: usize = 1024;
