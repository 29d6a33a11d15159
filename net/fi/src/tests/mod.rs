//! The provider as libfabric calls it: through its tables of functions and the layouts of its
//! headers, over the kernel's loopback.
//!
//! `tests/words.rs` is a program on libfabric itself; here is what libfabric would not call, and
//! what it would only call at a fault.

mod addresses;
mod atomics;
mod events;
mod hints;
mod memory;
mod messages;
mod objects;
mod queues;

use crate::abi::*;
use crate::fi_prov_ini;
use std::ffi::{CStr, c_int, c_void};
use std::ptr::{self, null_mut};
use std::time::{Duration, Instant};

/// Longer than any step here takes.
const LONG: Duration = Duration::from_secs(60);
/// The same in milliseconds.
const LONG_MS: c_int = 60_000;
/// The version that this provider is written for.
const API: u32 = version(1, 17);

/// Calls a function of an object's table, with the object as its first argument, or with the
/// object's head.
macro_rules! op {
    ($object:expr, $table:ident.$name:ident($($argument:expr),* $(,)?)) => {{
        let object = $object;
        // SAFETY: an object of the provider that is not closed; each test passes valid arguments.
        #[allow(clippy::macro_metavars_in_unsafe)]
        unsafe { (*(*object).$table).$name.expect(stringify!($name))(object, $($argument),*) }
    }};
    (head $object:expr, $table:ident.$name:ident($($argument:expr),* $(,)?)) => {{
        let object = $object;
        // SAFETY: as above.
        #[allow(clippy::macro_metavars_in_unsafe)]
        unsafe {
            (*(*object).$table).$name.expect(stringify!($name))(object.cast(), $($argument),*)
        }
    }};
}
pub(crate) use op;

/// A structure of zeros, as a program in C begins with.
fn zeroed<T: Copy>() -> T {
    // SAFETY: only structures of the interface: numbers, pointers and optional functions.
    unsafe { std::mem::zeroed() }
}

fn provider() -> &'static fi_provider {
    // SAFETY: the provider is a static.
    unsafe { &*fi_prov_ini().cast() }
}

/// Hints with all their parts.
struct Hints {
    info: fi_info,
    tx: fi_tx_attr,
    rx: fi_rx_attr,
    ep: fi_ep_attr,
    domain: fi_domain_attr,
    fabric: fi_fabric_attr,
}

impl Hints {
    /// Empty hints, changed by `change`.
    fn new(change: impl FnOnce(&mut Self)) -> Self {
        let mut hints = Self {
            info: zeroed(),
            tx: zeroed(),
            rx: zeroed(),
            ep: zeroed(),
            domain: zeroed(),
            fabric: zeroed(),
        };
        change(&mut hints);
        hints
    }

    /// The hints of a program that wants everything.
    fn all() -> Self {
        Self::new(|hints| {
            hints.info.caps = FI_MSG | FI_RMA | FI_ATOMIC;
            hints.info.mode = FI_RX_CQ_DATA;
            hints.ep.type_ = FI_EP_MSG;
            hints.domain.mr_mode = FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY;
        })
    }

    fn offers(&mut self, node: Option<&CStr>, flags: u64) -> Result<Offers, c_int> {
        self.offers_to(API, node, None, flags)
    }

    fn offers_to(
        &mut self,
        api: u32,
        node: Option<&CStr>,
        service: Option<&CStr>,
        flags: u64,
    ) -> Result<Offers, c_int> {
        self.info.tx_attr = &mut self.tx;
        self.info.rx_attr = &mut self.rx;
        self.info.ep_attr = &mut self.ep;
        self.info.domain_attr = &mut self.domain;
        self.info.fabric_attr = &mut self.fabric;
        getinfo(api, node, service, flags, &self.info)
    }
}

fn getinfo(
    api: u32,
    node: Option<&CStr>,
    service: Option<&CStr>,
    flags: u64,
    hints: *const fi_info,
) -> Result<Offers, c_int> {
    let text = |text: Option<&CStr>| text.map_or(ptr::null(), CStr::as_ptr);
    let mut first = null_mut();
    let getinfo = provider().getinfo.expect("getinfo");
    // SAFETY: NULL or strings, NULL or hints, a place for a pointer.
    match unsafe { getinfo(api, text(node), text(service), flags, hints, &mut first) } {
        0 => Ok(Offers(first)),
        error => Err(error),
    }
}

/// The list of offers, which `fi_freeinfo` would free.
struct Offers(*mut fi_info);

impl Offers {
    fn first(&self) -> &fi_info {
        // SAFETY: a list has a first one.
        unsafe { &*self.0 }
    }

    fn count(&self) -> usize {
        let (mut count, mut at) = (0, self.0);
        // SAFETY: the links of the list are valid, or NULL at its end.
        while let Some(info) = unsafe { at.as_ref() } {
            (count, at) = (count + 1, info.next);
        }
        count
    }

    fn tx(&self) -> &fi_tx_attr {
        // SAFETY: every offer has its attributes; so below.
        unsafe { &*self.first().tx_attr }
    }

    fn rx(&self) -> &fi_rx_attr {
        // SAFETY: see `tx`.
        unsafe { &*self.first().rx_attr }
    }

    fn ep(&self) -> &fi_ep_attr {
        // SAFETY: see `tx`.
        unsafe { &*self.first().ep_attr }
    }

    fn domain(&self) -> &fi_domain_attr {
        // SAFETY: see `tx`.
        unsafe { &*self.first().domain_attr }
    }

    /// Name of the fabric.
    fn network(&self) -> &str {
        // SAFETY: see `tx`; its name is a string.
        let name = unsafe { CStr::from_ptr((*self.first().fabric_attr).name) };
        name.to_str().expect("digits and dots")
    }
}

impl Drop for Offers {
    fn drop(&mut self) {
        let mut at = self.0;
        // SAFETY: as in `count`; each is freed once, after its link was read.
        while let Some(info) = unsafe { at.as_ref() } {
            let next = info.next;
            crate::info::free_request(at.expose_provenance());
            at = next;
        }
    }
}

/// A fabric with a domain and an event queue.
struct World {
    offers: Offers,
    fabric: *mut fid_fabric,
    domain: *mut fid_domain,
    eq: *mut fid_eq,
}

impl World {
    fn open() -> Self {
        Self::of(Hints::all())
    }

    fn of(mut hints: Hints) -> Self {
        let offers = hints
            .offers(Some(c"127.0.0.1"), FI_SOURCE)
            .expect("an offer");
        let (mut fabric, mut domain, mut eq) = (null_mut(), null_mut(), null_mut());
        let open = provider().fabric.expect("fabric");
        // SAFETY: attributes of an offer, a place for a pointer.
        let opened = unsafe { open(offers.first().fabric_attr, &mut fabric, null_mut()) };
        assert_eq!(opened, 0);
        assert_eq!(
            op!(fabric, ops.domain(offers.0, &mut domain, null_mut())),
            0
        );
        assert_eq!(
            op!(fabric, ops.eq_open(&mut zeroed(), &mut eq, null_mut())),
            0
        );
        Self {
            offers,
            fabric,
            domain,
            eq,
        }
    }

    fn cq(&self, format: c_int) -> *mut fid_cq {
        let mut attr = fi_cq_attr { format, ..zeroed() };
        let mut cq = null_mut();
        assert_eq!(
            op!(self.domain, ops.cq_open(&mut attr, &mut cq, null_mut())),
            0
        );
        cq
    }

    fn cntr(&self) -> *mut fid_cntr {
        let mut cntr = null_mut();
        let opened = op!(
            self.domain,
            ops.cntr_open(&mut zeroed(), &mut cntr, null_mut())
        );
        assert_eq!(opened, 0);
        cntr
    }

    fn memory(&self, words: &mut [u64], access: u64) -> *mut fid_mr {
        let mut mr = null_mut();
        let (address, bytes) = (words.as_mut_ptr().cast(), size_of_val(words));
        // SAFETY: a domain, and memory that outlives the region in each test.
        let registered = unsafe {
            let reg = (*(*self.domain).mr).reg.expect("reg");
            let head = self.domain.cast();
            reg(head, address, bytes, access, 0, 0, 0, &mut mr, null_mut())
        };
        assert_eq!(registered, 0);
        mr
    }

    fn endpoint(&self, info: *mut fi_info, context: *mut c_void) -> *mut fid_ep {
        let mut ep = null_mut();
        assert_eq!(op!(self.domain, ops.endpoint(info, &mut ep, context)), 0);
        assert_eq!(bind(ep, self.eq, 0), 0);
        ep
    }

    /// A passive endpoint that listens, and its address.
    fn listener(&self) -> (*mut fid_pep, Vec<u8>) {
        let mut pep = null_mut();
        let opened = op!(
            self.fabric,
            ops.passive_ep(self.offers.0, &mut pep, null_mut())
        );
        assert_eq!(opened, 0);
        assert_eq!(bind(pep, self.eq, 0), 0);
        assert_eq!(op!(pep, cm.listen()), 0);
        let mut address = vec![0; 64];
        let mut bytes = address.len();
        let named = op!(head pep, cm.getname(address.as_mut_ptr().cast(), &mut bytes));
        assert_eq!(named, 0);
        address.truncate(bytes);
        (pep, address)
    }

    /// The next event: its number, its head, its private data.
    fn event(&self) -> (u32, fi_eq_entry, Vec<u8>) {
        let mut bytes = [0_u8; 400];
        let mut event = u32::MAX;
        let buffer = bytes.as_mut_ptr().cast();
        let count = op!(self.eq, ops.sread(&mut event, buffer, 400, LONG_MS, 0));
        let count = usize::try_from(count).unwrap_or_else(|_| panic!("an event: {count}"));
        // SAFETY: the buffer is longer than the structure.
        let entry = unsafe { bytes.as_ptr().cast::<fi_eq_entry>().read_unaligned() };
        (event, entry, bytes[16..count.max(16)].to_vec())
    }
}

impl Drop for World {
    fn drop(&mut self) {
        for object in [
            self.eq.cast(),
            self.domain.cast(),
            self.fabric.cast::<fid>(),
        ] {
            assert_eq!(close(object), 0);
        }
    }
}

fn close<T>(object: *mut T) -> c_int {
    let object: *mut fid = object.cast();
    op!(object, ops.close())
}

/// Binds an object to another one.
fn bind<T, U>(object: *mut T, other: *mut U, flags: u64) -> c_int {
    let object: *mut fid = object.cast();
    op!(object, ops.bind(other.cast(), flags))
}

fn control<T, U>(object: *mut T, command: c_int, argument: *mut U) -> c_int {
    let object: *mut fid = object.cast();
    op!(object, ops.control(command, argument.cast()))
}

/// An address as a context, which comes back with its operation.
fn context(number: usize) -> *mut c_void {
    ptr::without_provenance_mut(number)
}

fn iov<T>(values: &mut [T]) -> iovec {
    iovec {
        iov_base: values.as_mut_ptr().cast(),
        iov_len: size_of_val(values),
    }
}

/// A completion of the format with data, or the error of its absence.
fn take(cq: *mut fid_cq) -> Result<fi_cq_tagged_entry, isize> {
    let mut entry = zeroed::<fi_cq_tagged_entry>();
    match op!(cq, ops.read((&raw mut entry).cast(), 1)) {
        1 => Ok(entry),
        error => Err(error),
    }
}

/// The next completion of a queue.
fn completion(cq: *mut fid_cq) -> fi_cq_tagged_entry {
    let again = -isize::try_from(libc::EAGAIN).expect("small");
    let begun = Instant::now();
    loop {
        match take(cq) {
            Ok(entry) => return entry,
            Err(error) => assert_eq!(error, again),
        }
        assert!(begun.elapsed() < LONG, "a completion");
    }
}

/// A negative error number as calls return it.
fn failed(number: c_int) -> isize {
    -isize::try_from(number).expect("small")
}

/// Two endpoints of one process that are connected, each with a queue of its own.
struct Two {
    world: World,
    pep: *mut fid_pep,
    client: *mut fid_ep,
    server: *mut fid_ep,
    client_cq: *mut fid_cq,
    server_cq: *mut fid_cq,
}

impl Two {
    fn open() -> Self {
        Self::bound(0, |_, _| {})
    }

    /// With flags of the clients' binding, and what else `prepare` binds to both.
    fn bound(flags: u64, prepare: impl Fn(&World, *mut fid_ep)) -> Self {
        let world = World::open();
        let (pep, address) = world.listener();
        let client_cq = world.cq(FI_CQ_FORMAT_TAGGED);
        let server_cq = world.cq(FI_CQ_FORMAT_TAGGED);
        let client = world.endpoint(world.offers.0, context(0xc1));
        assert_eq!(bind(client, client_cq, FI_SEND | FI_RECV | flags), 0);
        prepare(&world, client);
        assert_eq!(control(client, FI_ENABLE, null_mut::<c_void>()), 0);
        let connected = op!(client, cm.connect(address.as_ptr().cast(), ptr::null(), 0));
        assert_eq!(connected, 0);
        let (event, entry, _) = world.event();
        assert_eq!(event, FI_CONNREQ);
        assert_eq!(entry.fid, pep.cast());
        let request = Offers(entry.context.cast());
        let server = world.endpoint(request.0, context(0x5e));
        assert_eq!(bind(server, server_cq, FI_SEND | FI_RECV), 0);
        prepare(&world, server);
        assert_eq!(control(server, FI_ENABLE, null_mut::<c_void>()), 0);
        assert_eq!(op!(server, cm.accept(ptr::null(), 0)), 0);
        let mut established = [world.event(), world.event()].map(|(event, entry, _)| {
            assert_eq!(event, FI_CONNECTED);
            entry.fid
        });
        established.sort();
        let mut both = [client.cast::<fid>(), server.cast()];
        both.sort();
        assert_eq!(established, both);
        Self {
            world,
            pep,
            client,
            server,
            client_cq,
            server_cq,
        }
    }

    fn receive(&self, ep: *mut fid_ep, into: &mut [u8], context: *mut c_void) -> isize {
        let (address, bytes) = (into.as_mut_ptr().cast(), into.len());
        op!(ep, msg.recv(address, bytes, null_mut(), u64::MAX, context))
    }

    fn send(&self, ep: *mut fid_ep, from: &[u8], context: *mut c_void) -> isize {
        let (address, bytes) = (from.as_ptr().cast(), from.len());
        op!(ep, msg.send(address, bytes, null_mut(), 0, context))
    }
}

impl Drop for Two {
    fn drop(&mut self) {
        for object in [
            self.client.cast(),
            self.server.cast(),
            self.pep.cast(),
            self.client_cq.cast(),
            self.server_cq.cast::<fid>(),
        ] {
            // Tests close some of them, and leave NULL.
            if !object.is_null() {
                assert_eq!(close(object), 0);
            }
        }
    }
}
