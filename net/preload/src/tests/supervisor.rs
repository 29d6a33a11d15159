//! A supervisor in this process: it answers the library's requests, and has the far ends.

use crate::attachment;
use crate::rings;
use crate::table::{self, Kind, Record};
use sidecore_net_rings::datagram::{DIRECTORY_BYTES, Directory, Place, PlaceState};
use sidecore_net_rings::{
    ATTACH, DATAGRAMS, GROW, LARGE_BYTES, Process, SEGMENT_BYTES, SLAB_BYTES, SLAB_STREAMS, Served,
    Stream, TAKE_BACK, UPGRADE, VERSION, WAITER, WORDS,
};
use sidecore_sync::Changed;
use sidecore_sys::{SharedMap, Sharing};
use std::collections::HashMap;
use std::ffi::c_int;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, IntoRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::Ordering;
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};

/// The supervisor of this process.
#[derive(Default)]
pub(crate) struct Supervisor {
    segment: Option<SharedMap>,
    waiters: Vec<UnixStream>,
    slabs: Vec<SharedMap>,
    sessions: HashMap<c_int, Far>,
    streams: u32,
    /// Places of streams that are over.
    free: Vec<u32>,
    directory: Option<SharedMap>,
    /// Of datagram sockets: their places, their desks, and the number of frames that were taken.
    places: HashMap<c_int, (Place, UdpSocket, usize)>,
    /// Numbers of places and of ways that were used.
    used: u16,
}

/// The supervisor's end of one session.
struct Far {
    pair: UnixStream,
    /// Errors of the next requests for rings, the next one last.
    refusals: Vec<c_int>,
    rings: Option<Rings>,
    /// The number of rings that were taken back.
    number: Option<u32>,
    large: Option<SharedMap>,
    /// Bytes of the rings when they were taken back.
    taken: Vec<u8>,
    taken_back: usize,
    was_connected: bool,
    /// A signal arrives while its thread waits for an answer.
    raises: bool,
}

struct Rings {
    number: u32,
    served: Served,
}

static SUPERVISOR: LazyLock<Mutex<Supervisor>> = LazyLock::new(Mutex::default);

pub(crate) fn supervisor() -> MutexGuard<'static, Supervisor> {
    SUPERVISOR.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Answers a request, in place of the getsockopt(2) that a filter would stop; none, so that the
/// kernel answers, for a descriptor that is no session's.
pub(crate) fn answer(file: c_int, name: c_int, word: u32) -> Option<Result<[u32; WORDS], c_int>> {
    let mut all = supervisor();
    if all.sessions.get(&file).is_some_and(|far| far.raises) {
        // SAFETY: a call without pointers; the test that asks for it has set a handler.
        unsafe { libc::raise(libc::SIGUSR2) };
    }
    match name {
        ATTACH => Some(all.attach(word)),
        WAITER => Some(all.add_waiter(word)),
        UPGRADE | TAKE_BACK | GROW if !all.sessions.contains_key(&file) => None,
        UPGRADE => Some(all.upgrade(file)),
        TAKE_BACK => Some(all.take_back(file)),
        GROW => Some(all.grow(file)),
        DATAGRAMS => {
            let (place, desk, taken) = all.places.get_mut(&file)?;
            // What was sent before is taken first.
            while is_taken(desk.as_fd()) {
                *taken += 1;
            }
            let place = *place;
            let memory = match word {
                0 => passed(all.directory.as_ref()?.file()),
                _ => u32::MAX,
            };
            Some(Ok([place.number, place.generation, memory, 0]))
        }
        _ => None,
    }
}

/// True for a session that is to count as established.
pub(crate) fn was_connected(file: c_int) -> bool {
    let all = supervisor();
    all.sessions.get(&file).is_some_and(|far| far.was_connected)
}

/// Takes a datagram; false if there is none. Not by the library's recvmsg(2), which after some
/// calls would ask this supervisor for rings, and wait for it.
fn is_taken(desk: BorrowedFd<'_>) -> bool {
    let (nothing, flags) = (std::ptr::null_mut::<u8>(), libc::MSG_DONTWAIT);
    // SAFETY: no bytes and no name are asked for.
    let result = unsafe {
        libc::syscall(
            libc::SYS_recvfrom,
            desk.as_raw_fd(),
            nothing,
            0_usize,
            flags,
            nothing,
            nothing,
        )
    };
    result >= 0
}

fn passed(file: BorrowedFd<'_>) -> u32 {
    file.try_clone_to_owned()
        .unwrap()
        .into_raw_fd()
        .cast_unsigned()
}

impl Supervisor {
    fn attach(&mut self, version: u32) -> Result<[u32; WORDS], c_int> {
        assert_eq!(version, VERSION);
        let made = SharedMap::create("test", SEGMENT_BYTES, Sharing::ReadWrite).unwrap();
        let file = passed(made.file());
        self.segment = Some(made);
        // A forked child's memory is another one, with waiters and streams of its own.
        self.waiters.clear();
        self.slabs.clear();
        self.free.clear();
        self.streams = 0;
        Ok([VERSION, NUMBER, file, 0])
    }

    fn add_waiter(&mut self, attachment: u32) -> Result<[u32; WORDS], c_int> {
        assert_eq!(attachment, NUMBER);
        let (near, far) = UnixStream::pair().unwrap();
        self.waiters.push(far);
        let number = u32::try_from(self.waiters.len() - 1).unwrap();
        // The library moves it, and closes this number without a trace.
        let file = table::new(near.into_raw_fd(), Kind::Other);
        Ok([number, file.cast_unsigned(), 0, 0])
    }

    fn grow(&mut self, file: c_int) -> Result<[u32; WORDS], c_int> {
        let far = self.sessions.get_mut(&file).ok_or(libc::EOPNOTSUPP)?;
        let rings = far.rings.as_ref().ok_or(libc::EOPNOTSUPP)?;
        let made = SharedMap::create("test", LARGE_BYTES, Sharing::ReadWrite).unwrap();
        let answer = [rings.number, passed(made.file()), 0, 0];
        far.large = Some(made);
        Ok(answer)
    }

    fn upgrade(&mut self, file: c_int) -> Result<[u32; WORDS], c_int> {
        let far = self.sessions.get_mut(&file).ok_or(libc::EOPNOTSUPP)?;
        if let Some(error) = far.refusals.pop() {
            return Err(error);
        }
        let number = self.free.pop().unwrap_or(self.streams);
        self.streams = self.streams.max(number + 1);
        let slab = usize::try_from(number / SLAB_STREAMS).unwrap();
        let mut file = u32::MAX;
        if slab == self.slabs.len() {
            let made = SharedMap::create("test", SLAB_BYTES, Sharing::ReadWrite).unwrap();
            file = passed(made.file());
            self.slabs.push(made);
        }
        Stream::of_slab(self.slabs[slab].slice(), number)
            .unwrap()
            .begin();
        far.rings = Some(Rings {
            number,
            served: Served::default(),
        });
        Ok([number, file, 0, 0])
    }

    fn take_back(&mut self, file: c_int) -> Result<[u32; WORDS], c_int> {
        let far = self.sessions.get_mut(&file).ok_or(libc::EOPNOTSUPP)?;
        far.taken_back += 1;
        let Some(rings) = &mut far.rings else {
            return Ok([0; WORDS]);
        };
        let stream = stream_of(&self.slabs, rings.number, far.large.as_ref());
        // A child's supervisor, which is a copy of this one, has done it.
        if stream.is_taken_back() {
            far.rings = None;
            return Ok([0; WORDS]);
        }
        if !stream.take_back(false) {
            return Err(libc::EAGAIN);
        }
        let mut bytes = vec![0; LARGE_BYTES];
        let count = stream.take(&mut rings.served, &mut bytes).unwrap();
        far.taken.extend_from_slice(&bytes[..count]);
        // Behind what the pair already holds.
        let unread = stream.unread(&rings.served).unwrap();
        std::io::Write::write_all(&mut far.pair, &unread).unwrap();
        let number = rings.number;
        let large = far.large.take();
        self.tell(number, stream_of(&self.slabs, number, large.as_ref()));
        let far = self.sessions.get_mut(&file).ok_or(libc::EOPNOTSUPP)?;
        far.large = large;
        // The number stays the session's: a thread that is being woken still has its stream.
        far.number = far.rings.take().map(|rings| rings.number);
        Ok([0; WORDS])
    }

    /// Tells the program of an event of a stream, and wakes the threads that wait for it.
    fn tell(&self, number: u32, stream: Stream<'_>) {
        let process = Process::over(self.segment.as_ref().unwrap().slice()).unwrap();
        // A waiter registers and looks then; bytes were written before: one of both sees the other.
        let changed = Changed::publish();
        for waiter in stream.tells() {
            process.tell_waiter(waiter, number);
            let word = process.waiter_word(waiter).unwrap();
            if word.claim_after(changed) {
                let mut socket = &self.waiters[usize::try_from(waiter).unwrap()];
                std::io::Write::write_all(&mut socket, b"!").unwrap();
            }
        }
    }
}

fn stream_of<'m>(slabs: &'m [SharedMap], number: u32, large: Option<&'m SharedMap>) -> Stream<'m> {
    let slab = &slabs[usize::try_from(number / SLAB_STREAMS).unwrap()];
    let stream = Stream::of_slab(slab.slice(), number).unwrap();
    stream.with_large(large.map(SharedMap::slice))
}

/// A program's end of a session of the stack, which the library has met.
pub(crate) struct Session {
    near: OwnedFd,
}

impl Session {
    /// A session by its pair.
    pub(crate) fn by_pair() -> Self {
        let (near, pair) = UnixStream::pair().unwrap();
        let near = OwnedFd::from(near);
        table::new(near.as_raw_fd(), Kind::Candidate);
        let far = Far {
            pair,
            refusals: Vec::new(),
            rings: None,
            number: None,
            large: None,
            taken: Vec::new(),
            taken_back: 0,
            was_connected: true,
            raises: false,
        };
        supervisor().sessions.insert(near.as_raw_fd(), far);
        Self { near }
    }

    /// A session by rings.
    pub(crate) fn by_rings() -> Self {
        for _ in 0..100 {
            let session = Self::by_pair();
            // Not while another thread makes the attachment.
            super::until("the session has rings", || {
                rings::upgrade(session.file(), session.record()) || session.kind() == Kind::Barred
            });
            // Another test has forked meanwhile: its child may have the descriptor, too.
            if session.kind() != Kind::Barred {
                return session;
            }
        }
        panic!("each of 100 sessions met a fork");
    }

    pub(crate) fn file(&self) -> c_int {
        self.near.as_raw_fd()
    }

    pub(crate) fn record(&self) -> &'static Record {
        table::record(self.file()).unwrap()
    }

    pub(crate) fn kind(&self) -> Kind {
        self.record().kind()
    }

    /// Refuses the next requests for rings with these errors.
    pub(crate) fn refuse(&self, errors: &[c_int]) {
        let mut all = supervisor();
        let far = all.sessions.get_mut(&self.file()).unwrap();
        far.refusals = errors.iter().rev().copied().collect();
    }

    /// Each of its requests meets SIGUSR2.
    pub(crate) fn interrupt_requests(&self) {
        let mut all = supervisor();
        all.sessions.get_mut(&self.file()).unwrap().raises = true;
    }

    /// Not a session: a pair of the program's own.
    pub(crate) fn forget_connection(&self) {
        let mut all = supervisor();
        all.sessions.get_mut(&self.file()).unwrap().was_connected = false;
    }

    /// Number of the library's requests to take its rings back.
    pub(crate) fn taken_back(&self) -> usize {
        supervisor().sessions[&self.file()].taken_back
    }

    fn with_stream<T>(&self, work: impl FnOnce(Stream<'_>, &mut Served) -> T) -> T {
        let mut all = supervisor();
        let mut far = all.sessions.remove(&self.file()).unwrap();
        let rings = far.rings.as_mut().expect("the session has rings");
        let stream = stream_of(&all.slabs, rings.number, far.large.as_ref());
        let done = work(stream, &mut rings.served);
        all.tell(rings.number, stream);
        all.sessions.insert(self.file(), far);
        done
    }

    /// The peer sends bytes; the number for which there was room.
    pub(crate) fn give(&self, bytes: &[u8]) -> usize {
        self.with_stream(|stream, served| stream.give(served, bytes).unwrap())
    }

    /// The peer sends bytes by the pair.
    pub(crate) fn give_by_pair(&self, bytes: &[u8]) {
        let all = supervisor();
        let mut pair = &all.sessions[&self.file()].pair;
        std::io::Write::write_all(&mut pair, bytes).unwrap();
    }

    /// The peer takes bytes.
    pub(crate) fn take(&self, room: usize) -> Vec<u8> {
        self.with_stream(|stream, served| {
            let mut bytes = vec![0; room];
            let count = stream.take(served, &mut bytes).unwrap();
            bytes.truncate(count);
            bytes
        })
    }

    /// The bytes in the rings when they were taken back, and those of the pair.
    pub(crate) fn take_rest(&self) -> Vec<u8> {
        let mut all = supervisor();
        let far = all.sessions.get_mut(&self.file()).unwrap();
        let mut bytes = std::mem::take(&mut far.taken);
        far.pair.set_nonblocking(true).unwrap();
        let _ = std::io::Read::read_to_end(&mut far.pair, &mut bytes);
        bytes
    }

    /// The peer sends no more.
    pub(crate) fn end(&self) {
        self.with_stream(|stream, _| stream.end());
    }

    /// The session fails.
    pub(crate) fn fail(&self, errno: c_int) {
        self.with_stream(|stream, _| stream.fail(errno));
    }

    /// The supervisor takes the rings back unasked.
    pub(crate) fn retake(&self) {
        assert!(supervisor().take_back(self.file()).is_ok());
    }

    /// The other end of the pair closes.
    pub(crate) fn hang_up(&self) {
        let mut all = supervisor();
        let far = all.sessions.get_mut(&self.file()).unwrap();
        far.pair = UnixStream::pair().unwrap().0;
    }

    /// Wakes the program's threads, without news.
    pub(crate) fn tell(&self) {
        self.with_stream(|_, _| ());
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        let file = self.file();
        // As the program's close, while the number is still this session's.
        if self.kind() == Kind::Ring {
            rings::leave(file, self.record());
        }
        self.record().begin(Kind::Other);
        let mut all = supervisor();
        if let Some(far) = all.sessions.remove(&file) {
            // The library keeps the large rings of a number: the next stream would have them.
            let number = far.rings.map(|rings| rings.number).or(far.number);
            all.free.extend(number.filter(|_| far.large.is_none()));
        }
    }
}

/// A program's UDP socket with a place in the directory, and the supervisor's sockets for it.
pub(crate) struct Datagrams {
    pub(crate) socket: UdpSocket,
    /// Stands for [`peer`].
    pub(crate) sender: UdpSocket,
    pub(crate) desk: UdpSocket,
    place: Place,
}

impl Datagrams {
    /// One that may do this, and asks with its next call.
    pub(crate) fn new(flags: u16) -> Self {
        let [socket, sender, desk] = [(); 3].map(|()| UdpSocket::bind("127.0.0.1:0").unwrap());
        let place = {
            let mut all = supervisor();
            let used = all.used;
            all.used += 1;
            let made = || SharedMap::reserve("test", DIRECTORY_BYTES, Sharing::ReadOnly).unwrap();
            let memory = all.directory.get_or_insert_with(made);
            let directory = Directory::over(memory.slice()).unwrap();
            let to = IpAddr::from([10, 0, 0, 2]);
            directory.set_way(used, sender.local_addr().unwrap(), peer(), to);
            directory.set_reaches(peer().ip(), true);
            let place = Place {
                number: used.into(),
                generation: 0,
            };
            let held = (place, desk.try_clone().unwrap(), 0);
            all.places.insert(socket.as_raw_fd(), held);
            place
        };
        let it = Self {
            socket,
            sender,
            desk,
            place,
        };
        it.allow(flags);
        // Its datagrams pass without rings, whatever other tests ask of new sockets.
        it.record().set_kind(table::Kind::Barred);
        it.record().calls.store(1000, Ordering::Relaxed);
        it
    }

    pub(crate) fn file(&self) -> c_int {
        self.socket.as_raw_fd()
    }

    pub(crate) fn record(&self) -> &'static Record {
        table::record(self.file()).unwrap()
    }

    /// Number of frames that the supervisor has taken because the library asked.
    pub(crate) fn taken(&self) -> usize {
        supervisor().places[&self.file()].2
    }

    /// Changes what the library may do.
    pub(crate) fn allow(&self, flags: u16) {
        let desk_port = self.desk.local_addr().unwrap().port();
        let state = PlaceState { flags, desk_port };
        self.with_directory(|directory| directory.set_state(self.place, state));
    }

    /// Another socket has the place from now on.
    pub(crate) fn lose_place(&self) {
        let place = Place {
            generation: self.place.generation + 1,
            ..self.place
        };
        self.with_directory(|directory| directory.set_state(place, PlaceState::default()));
    }

    fn with_directory(&self, work: impl FnOnce(Directory<'_>)) {
        let all = supervisor();
        let memory = all.directory.as_ref().unwrap();
        work(Directory::over(memory.slice()).unwrap());
    }

    /// The peer sends these, one after the other; another process where it is `None`.
    pub(crate) fn give(&self, payloads: &[Option<&[u8]>]) {
        let to = self.socket.local_addr().unwrap();
        for payload in payloads {
            match payload {
                Some(payload) => self.sender.send_to(payload, to).unwrap(),
                None => self.desk.send_to(b"of another process", to).unwrap(),
            };
        }
    }
}

impl Drop for Datagrams {
    fn drop(&mut self) {
        supervisor().places.remove(&self.file());
    }
}

/// The host that the tests' datagrams come from.
pub(crate) fn peer() -> SocketAddr {
    SocketAddr::from(([10, 0, 0, 1], 53))
}

/// True if the library has an attachment, which it makes for the first rings.
pub(crate) fn is_attached() -> bool {
    attachment::current().is_some()
}

const NUMBER: u32 = 7;
