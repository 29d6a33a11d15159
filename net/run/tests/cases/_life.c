/* The lives of sockets by random calls: `life SEED STEPS`, over the kernel or under `net run`.
 *
 * A coordinator without sockets draws steps; up to four worker processes, which fork, execute
 * this program again, pass descriptors and end, make the calls: in threads where a call may wait.
 * A line is written for each step: the call, its result, and what has changed since the last one
 * in the readiness and the unread bytes of every descriptor, and in the calls that wait.
 *
 * LIFE_EXPECT=FILE: lines of another run with that seed. At each step this run waits for the same
 * line, for LIFE_WAIT ms at most, and writes what it has then. Without it a run waits until
 * nothing changes, which on the kernel's loopback is at once.
 * LIFE_SKIP=3,5,9: steps to leave out. The draws of a step depend on the seed and its number only.
 *
 * Must stay true: a line names no port, descriptor's number of a thread, time or size of a buffer;
 * a step is drawn whose outcome depends on no race. What differs for a reason is not drawn, or is
 * made the same (`allowed`). */
#include "_case.h"
#include <sched.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/prctl.h>

enum { SLOTS = 12, PROCESSES = 4, WAITERS = 2, OBJECTS = 128, UNREAD_MAX = 12000 };
/* Descriptors of the coordinator's and of the channel for passing; sockets stay far below. */
enum { CONTROL = 200, CHANNEL = 220 };

enum op {
    OBSERVE, SOCKET, BIND, LISTEN, CONNECT, ACCEPT, SEND, RECV, SHUTDOWN, CLOSE, DUP, FCNTL, NAME,
    GETOPT, SETOPT, EPCREATE, EPCTL, EPWAIT, POLLWAIT, IOCTL, FORK, EXEC, EXIT, PASS, TAKE, FILL,
    DRAIN, SIGNAL, WRONG, OPS
};
static const char *const op_names[OPS] = {
    "observe", "socket", "bind", "listen", "connect", "accept", "send", "recv", "shutdown", "close",
    "dup", "fcntl", "name", "getopt", "setopt", "epoll_create", "epoll_ctl", "epoll_wait", "poll",
    "ioctl", "fork", "exec", "exit", "pass", "take", "fill", "drain", "signal", "wrong",
};

/* An address: which one, and its port. */
enum place { OWN4, OWN6, MAPPED, ANY4, ANY6, FOREIGN, UNSPEC, SHORT, FAULT, ALIEN, NOWHERE };
static const char *const place_names[] = {
    "own4", "own6", "mapped", "any4", "any6", "foreign", "unspec", "short", "fault", "alien",
    "none",
};

struct command {
    enum op op;
    int slot, other, how, flags, number, place, port, step;
    bool in_thread, learns_port;
};

struct reply {
    long result;
    int error, port, peer_port, thread;
    bool has_signal;
    int count;
    struct { int datum; unsigned bits; } events[16];
    char text[160];
};

/* What a process sees of its descriptors and of its calls that wait. */
struct view {
    char slot[SLOTS][64];
    int waiting[WAITERS]; /* 0: none; 1: waits; 2: `done` has its outcome */
    int thread[WAITERS];
    struct command asked[WAITERS];
    struct reply done[WAITERS];
};

static struct in_addr own4;
static struct in6_addr own6;

/* ---- a worker ------------------------------------------------------------------------------- */

static int fds[SLOTS];
static int own_number;
static __thread volatile sig_atomic_t pipes_broken;

static struct waiter {
    struct command asked;
    struct reply done;
    pthread_t thread;
    volatile int state, tid;
} waiters[WAITERS];

static void on_signal(int number)
{
    if (number == SIGPIPE)
        pipes_broken = 1;
}

static int fd_of(int slot) { return slot < 0 ? slot : fds[slot]; }

static unsigned hash_of(const unsigned char *bytes, size_t count)
{
    unsigned hash = 2166136261u;
    for (size_t at = 0; at < count; at++)
        hash = (hash ^ bytes[at]) * 16777619u;
    return (hash ^ hash >> 16) & 0xffff;
}

static socklen_t address_of(const struct command *asked, struct sockaddr_storage *at)
{
    struct sockaddr_in *v4 = (void *)at;
    struct sockaddr_in6 *v6 = (void *)at;
    memset(at, 0, sizeof *at);
    v6->sin6_port = htons(asked->port);
    v6->sin6_family = AF_INET6;
    switch (asked->place) {
    case OWN6: v6->sin6_addr = own6; return sizeof *v6;
    case ANY6: return sizeof *v6;
    case MAPPED:
        v6->sin6_addr.s6_addr[10] = v6->sin6_addr.s6_addr[11] = 0xff;
        memcpy(&v6->sin6_addr.s6_addr[12], &own4, 4);
        return sizeof *v6;
    case ALIEN: at->ss_family = AF_UNIX; return sizeof *v6;
    }
    v4->sin_family = asked->place == UNSPEC ? AF_UNSPEC : AF_INET;
    if (asked->place == FOREIGN)
        v4->sin_addr.s_addr = inet_addr("192.0.2.77");
    else if (asked->place != ANY4)
        v4->sin_addr = own4;
    return asked->place == SHORT ? 7 : sizeof *v4;
}

/* The words for an address, and its port. */
static int words_of(const struct sockaddr_storage *at, socklen_t size, char *words)
{
    const struct sockaddr_in *v4 = (void *)at;
    const struct sockaddr_in6 *v6 = (void *)at;
    if (size < 2) {
        strcpy(words, "-");
        return 0;
    }
    if (at->ss_family == AF_INET) {
        const char *name = v4->sin_addr.s_addr == own4.s_addr ? "own4" : "any4";
        strcpy(words, v4->sin_addr.s_addr && *name == 'a' ? "other4" : name);
        return ntohs(v4->sin_port);
    }
    if (at->ss_family != AF_INET6) {
        sprintf(words, "family %d", at->ss_family);
        return 0;
    }
    static const struct in6_addr any;
    bool is_mapped = IN6_IS_ADDR_V4MAPPED(&v6->sin6_addr);
    if (is_mapped)
        strcpy(words, memcmp(&v6->sin6_addr.s6_addr[12], &own4, 4) ? "other mapped" : "mapped");
    else if (!memcmp(&v6->sin6_addr, &own6, 16))
        strcpy(words, "own6");
    else
        strcpy(words, memcmp(&v6->sin6_addr, &any, 16) ? "other6" : "any6");
    return ntohs(v6->sin6_port);
}

static void learn_port(int fd, struct reply *reply)
{
    struct sockaddr_storage at;
    socklen_t size = sizeof at;
    char words[32];
    if (getsockname(fd, (void *)&at, &size) == 0)
        reply->port = words_of(&at, size, words);
}

static long send_it(const struct command *asked, struct reply *reply)
{
    static __thread unsigned char data[65536];
    struct sockaddr_storage at;
    socklen_t size = address_of(asked, &at);
    bool has_name = asked->place != NOWHERE;
    int fd = fd_of(asked->slot), count = asked->number;
    for (int byte = 0; byte < count; byte++)
        data[byte] = asked->step * 31 + byte * 7 + byte / 251;
    int first = count / 3;
    struct iovec parts[3] = {{data, first}, {data + first, 0}, {data + first, count - first}};
    struct msghdr message = {.msg_iov = parts, .msg_iovlen = 3};
    long sent;
    switch (asked->how) {
    case 0: sent = send(fd, data, count, asked->flags); break;
    case 1: sent = write(fd, data, count); break;
    case 2: sent = writev(fd, parts, 3); break;
    case 3:
        message.msg_name = has_name ? &at : NULL;
        message.msg_namelen = has_name ? size : 0;
        sent = sendmsg(fd, &message, asked->flags);
        break;
    case 4:
        sent = sendto(fd, data, count, asked->flags, has_name ? (void *)&at : NULL,
                      has_name ? size : 0);
        break;
    case 5: /* The first part is held until the second comes. */
        sent = send(fd, data, first, asked->flags | MSG_MORE);
        if (sent == first) {
            long more = send(fd, data + first, count - first, asked->flags);
            sent = more < 0 ? more : sent + more;
        }
        break;
    default: {
        struct mmsghdr both[2] = {{.msg_hdr = message}, {.msg_hdr = message}};
        both[1].msg_hdr.msg_iovlen = 1;
        for (int one = 0; one < 2 && has_name; one++)
            both[one].msg_hdr.msg_name = &at, both[one].msg_hdr.msg_namelen = size;
        long made = sendmmsg(fd, both, 2, asked->flags);
        sent = made < 0 ? made : 0;
        for (int one = 0; one < made; one++)
            sent += both[one].msg_len;
        if (made >= 0)
            sprintf(reply->text, " messages %ld", made);
    }
    }
    return sent;
}

static long receive_it(const struct command *asked, struct reply *reply)
{
    static __thread unsigned char data[65536];
    struct sockaddr_storage at = {0};
    socklen_t size = sizeof at;
    int fd = fd_of(asked->slot), count = asked->number, first = count / 3;
    struct iovec parts[2] = {{data, first}, {data + first, count - first}};
    char control[64];
    struct msghdr message = {.msg_iov = parts, .msg_iovlen = 2, .msg_name = &at,
                             .msg_namelen = sizeof at, .msg_control = control,
                             .msg_controllen = sizeof control};
    long got;
    switch (asked->how) {
    case 0: got = recv(fd, data, count, asked->flags); break;
    case 1: got = read(fd, data, count); break;
    case 2: got = readv(fd, parts, 2); break;
    case 3: got = recvmsg(fd, &message, asked->flags); break;
    default: got = recvfrom(fd, data, count, asked->flags, (void *)&at, &size);
    }
    if (got < 0)
        return got;
    int there = got < count ? got : count;
    char *text = reply->text + sprintf(reply->text, " %04x", hash_of(data, there));
    if (asked->how == 3) {
        size = message.msg_namelen;
        text += sprintf(text, " flags %x control %zu", message.msg_flags & ~MSG_CMSG_CLOEXEC,
                        message.msg_controllen);
    }
    if (asked->how >= 3) {
        char words[32];
        reply->peer_port = words_of(&at, size, words);
        sprintf(text, " from %s/%d", words, (int)size);
    }
    return got;
}

struct option {
    int level, name, length;
    const char *words;
    bool is_settable;
};
#define INT(level, name, set) {level, name, sizeof(int), #name, set}
static const struct option options[] = {
    INT(SOL_SOCKET, SO_TYPE, false), INT(SOL_SOCKET, SO_DOMAIN, false),
    INT(SOL_SOCKET, SO_PROTOCOL, false), INT(SOL_SOCKET, SO_ACCEPTCONN, false),
    INT(SOL_SOCKET, SO_ERROR, false), INT(SOL_SOCKET, SO_REUSEADDR, true),
    INT(SOL_SOCKET, SO_REUSEPORT, false), INT(SOL_SOCKET, SO_KEEPALIVE, true),
    INT(SOL_SOCKET, SO_BROADCAST, true), INT(SOL_SOCKET, SO_OOBINLINE, true),
    INT(SOL_SOCKET, SO_PRIORITY, true), INT(SOL_SOCKET, SO_TIMESTAMP, false),
    INT(SOL_SOCKET, SO_DONTROUTE, false), INT(SOL_SOCKET, SO_RCVLOWAT, false),
    INT(SOL_SOCKET, SO_MARK, false), INT(SOL_SOCKET, 9999, true),
    {SOL_SOCKET, SO_LINGER, sizeof(struct linger), "SO_LINGER", true},
    {SOL_SOCKET, SO_RCVTIMEO, sizeof(struct timeval), "SO_RCVTIMEO", false},
    {SOL_SOCKET, SO_SNDTIMEO, sizeof(struct timeval), "SO_SNDTIMEO", false},
    INT(IPPROTO_TCP, TCP_NODELAY, false), INT(IPPROTO_TCP, TCP_CORK, false),
    INT(IPPROTO_TCP, TCP_KEEPIDLE, true), INT(IPPROTO_TCP, TCP_KEEPINTVL, true),
    INT(IPPROTO_TCP, TCP_KEEPCNT, true), INT(IPPROTO_TCP, TCP_SYNCNT, true),
    INT(IPPROTO_TCP, TCP_LINGER2, true), INT(IPPROTO_TCP, TCP_DEFER_ACCEPT, false),
    INT(IPPROTO_TCP, TCP_USER_TIMEOUT, true), INT(IPPROTO_TCP, 9999, true),
    INT(IPPROTO_IP, IP_TOS, true), INT(IPPROTO_IP, IP_TTL, true),
    INT(IPPROTO_IP, IP_RECVERR, false), INT(IPPROTO_IPV6, IPV6_V6ONLY, true),
    INT(IPPROTO_IPV6, IPV6_UNICAST_HOPS, true), INT(IPPROTO_IPV6, IPV6_TCLASS, true),
    INT(77, 1, true),
};
enum { OPTIONS = sizeof options / sizeof *options };

static long get_option(const struct command *asked, struct reply *reply)
{
    const struct option *option = &options[asked->number];
    unsigned char value[64];
    memset(value, 0xee, sizeof value);
    socklen_t length = asked->flags < 0 ? asked->flags : option->length;
    if (asked->flags > 0)
        length = asked->flags - 1;
    void *to = asked->how ? (void *)8 : value;
    long got = getsockopt(fd_of(asked->slot), option->level, option->name, to, &length);
    if (got == 0) {
        char *text = reply->text + sprintf(reply->text, " %u:", length);
        for (socklen_t at = 0; at < length && at < 16; at++)
            text += sprintf(text, "%02x", value[at]);
    }
    return got;
}

static long set_option(const struct command *asked)
{
    const struct option *option = &options[asked->number];
    long long value[4] = {asked->flags};
    if (option->name == SO_LINGER && option->level == SOL_SOCKET)
        *(struct linger *)value = (struct linger){asked->flags != 0, 0};
    socklen_t length = asked->other >= 0 ? asked->other : option->length;
    void *from = asked->how ? (void *)8 : value;
    return setsockopt(fd_of(asked->slot), option->level, option->name, from, length);
}

static char *bits_of(unsigned bits, char *text)
{
    static const struct { unsigned bit; const char *name; } names[] = {
        {POLLIN, "IN"}, {POLLPRI, "PRI"}, {POLLOUT, "OUT"}, {POLLERR, "ERR"}, {POLLHUP, "HUP"},
        {POLLNVAL, "NVAL"}, {POLLRDHUP, "RDHUP"},
    };
    char *start = text;
    *text = 0;
    for (size_t at = 0; at < sizeof names / sizeof *names; at++)
        if (bits & names[at].bit)
            text += sprintf(text, "%s%s", text == start ? "" : "+", names[at].name);
    return text;
}

static long wait_events(const struct command *asked, struct reply *reply)
{
    struct epoll_event events[16];
    int limit = asked->in_thread ? -1 : 0;
    long got = asked->how ? epoll_pwait(fd_of(asked->slot), events, 16, limit, NULL)
                          : epoll_wait(fd_of(asked->slot), events, 16, limit);
    if (got <= 0)
        return got;
    for (int at = 0; at < got; at++) {
        reply->events[at].datum = events[at].data.u64;
        reply->events[at].bits = events[at].events;
    }
    reply->count = got;
    return got;
}

static long wait_one(const struct command *asked, struct reply *reply)
{
    struct pollfd one = {fd_of(asked->slot), asked->flags, 0};
    fd_set in, out;
    long got;
    if (asked->how == 0) {
        got = poll(&one, 1, asked->in_thread ? -1 : 0);
    } else if (asked->how == 1) {
        got = ppoll(&one, 1, asked->in_thread ? NULL : &(struct timespec){0}, NULL);
    } else {
        FD_ZERO(&in);
        FD_ZERO(&out);
        if (one.fd < 0) {
            errno = EBADF;
            return -1;
        }
        if (asked->flags & POLLIN)
            FD_SET(one.fd, &in);
        if (asked->flags & POLLOUT)
            FD_SET(one.fd, &out);
        got = select(one.fd + 1, &in, &out, NULL, asked->in_thread ? NULL : &(struct timeval){0});
        if (got >= 0)
            one.revents = (FD_ISSET(one.fd, &in) ? POLLIN : 0)
                          | (FD_ISSET(one.fd, &out) ? POLLOUT : 0);
    }
    if (got > 0) {
        strcpy(reply->text, " ");
        bits_of(one.revents, reply->text + 1);
    }
    return got;
}

static long name_it(const struct command *asked, struct reply *reply)
{
    struct sockaddr_storage at = {0};
    socklen_t room = asked->number, size = room;
    void *to = asked->place == FAULT ? (void *)8 : &at;
    long got = asked->how ? getpeername(fd_of(asked->slot), to, &size)
                          : getsockname(fd_of(asked->slot), to, &size);
    if (got == 0) {
        char words[32] = "cut";
        if (room >= 28)
            reply->peer_port = words_of(&at, size, words);
        sprintf(reply->text, " %s/%d", words, (int)size);
    }
    return got;
}

static long change_flags(const struct command *asked)
{
    int fd = fd_of(asked->slot), on = 1, off = 0, flags;
    switch (asked->how) {
    case 0: return fcntl(fd, F_SETFL, O_NONBLOCK);
    case 1: return fcntl(fd, F_SETFL, 0);
    case 2: return ioctl(fd, FIONBIO, &on);
    case 3: return ioctl(fd, FIONBIO, &off);
    case 4: return fcntl(fd, F_SETFD, FD_CLOEXEC);
    case 5: return fcntl(fd, F_SETFD, 0);
    case 6: return fcntl(fd, F_GETFD);
    default:
        flags = fcntl(fd, F_GETFL);
        return flags < 0 ? flags : flags & (O_ACCMODE | O_NONBLOCK | O_APPEND);
    }
}

static long ask_ioctl(const struct command *asked, struct reply *reply)
{
    static const unsigned long requests[] = {FIONREAD, 0x5411 /* SIOCOUTQ */,
                                             0x8905 /* SIOCATMARK */, 0x894b /* SIOCOUTQNSD */,
                                             0x5401 /* TCGETS */, 0x9999};
    unsigned char room[64] = {0};
    void *to = asked->flags ? (void *)8 : room;
    long got = ioctl(fd_of(asked->slot), requests[asked->how], to);
    if (got == 0 && asked->how < 4)
        sprintf(reply->text, " %d", *(int *)room);
    return got;
}

static long pass_on(const struct command *asked)
{
    char byte = 'x', control[CMSG_SPACE(sizeof(int))] = {0};
    struct iovec part = {&byte, 1};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = control,
                             .msg_controllen = sizeof control};
    struct cmsghdr *head = CMSG_FIRSTHDR(&message);
    head->cmsg_level = SOL_SOCKET;
    head->cmsg_type = SCM_RIGHTS;
    head->cmsg_len = CMSG_LEN(sizeof(int));
    memcpy(CMSG_DATA(head), &fds[asked->slot], sizeof(int));
    return sendmsg(CHANNEL, &message, 0);
}

static long take_over(const struct command *asked)
{
    char byte, control[CMSG_SPACE(sizeof(int))] = {0};
    struct iovec part = {&byte, 1};
    struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = control,
                             .msg_controllen = sizeof control};
    if (recvmsg(CHANNEL + 1, &message, MSG_DONTWAIT | asked->flags) < 0)
        return -1;
    struct cmsghdr *head = CMSG_FIRSTHDR(&message);
    if (!head || head->cmsg_type != SCM_RIGHTS)
        return -2;
    int fd;
    memcpy(&fd, CMSG_DATA(head), sizeof fd);
    return fds[asked->other] = fd;
}

static long duplicate(const struct command *asked)
{
    int fd = fd_of(asked->slot), *to = &fds[asked->other], made;
    switch (asked->how) {
    case 0: made = dup(fd); break;
    case 1: made = dup2(fd, *to); break;
    case 2: made = dup3(fd, *to, O_CLOEXEC); break;
    case 3: made = fcntl(fd, F_DUPFD, 60); break;
    default: made = fcntl(fd, F_DUPFD_CLOEXEC, 0);
    }
    return made < 0 ? made : (*to = made);
}

static long fill(const struct command *asked)
{
    static unsigned char data[32768];
    for (size_t at = 0; at < sizeof data; at++)
        data[at] = at * 13;
    long total = 0, sent;
    while (total < 4 << 20) {
        size_t from = total % sizeof data;
        sent = send(fd_of(asked->slot), data + from, sizeof data - from,
                    MSG_DONTWAIT | MSG_NOSIGNAL);
        if (sent < 0)
            break;
        total += sent;
    }
    return total;
}

/* Bytes of `fill`, from `port` on, that are right; -1 for a wrong one. */
static long drain(const struct command *asked)
{
    static unsigned char data[60000];
    long got = recv(fd_of(asked->slot), data, sizeof data, MSG_DONTWAIT);
    for (long at = 0; at < got; at++)
        if (data[at] != (unsigned char)((asked->number + at) % 32768 * 13))
            return -1000;
    return got;
}

/* Calls that no program should make. */
static long wrong(const struct command *asked)
{
    int fd = asked->how & 1 ? fd_of(asked->slot) : asked->how & 2 ? 999 : -1;
    struct sockaddr_storage at;
    socklen_t size = sizeof at;
    struct msghdr message = {.msg_name = (void *)8, .msg_namelen = 16};
    struct iovec part = {(void *)8, 10};
    switch (asked->number) {
    case 0: return send(fd, (void *)8, 10, MSG_DONTWAIT | MSG_NOSIGNAL);
    case 1: return recv(fd, (void *)8, 10, MSG_DONTWAIT);
    case 2: return sendmsg(fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
    case 3: return sendmsg(fd, (void *)8, MSG_DONTWAIT | MSG_NOSIGNAL);
    case 4: return recvmsg(fd, (void *)8, MSG_DONTWAIT);
    case 5: return lseek(fd, 0, SEEK_SET);
    case 6: return ftruncate(fd, 0);
    case 7: return pread(fd, &at, 1, 0);
    case 8: return listen(-1, 4);
    case 9: return accept4(fd, NULL, NULL, 0x12345);
    case 10: return bind(fd, (void *)8, 200);
    case 11: return connect(fd, (void *)&at, 0);
    case 12: return shutdown(fd, 7);
    case 13: message.msg_iov = &part, message.msg_iovlen = 2000, message.msg_namelen = 0;
        return sendmsg(fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
    case 14: return getsockname(fd, (void *)&at, (void *)8);
    case 15: return socket(AF_INET, SOCK_STREAM, IPPROTO_UDP);
    case 16: return socket(AF_INET, 77, 0);
    case 17: return getpeername(fd, (void *)8, &size);
    default: return fdatasync(fd);
    }
}

static long accept_it(const struct command *asked, struct reply *reply)
{
    struct sockaddr_storage at = {0};
    socklen_t size = sizeof at;
    char words[32];
    int made = asked->how == 0   ? accept(fd_of(asked->slot), (void *)&at, &size)
               : asked->how == 1 ? accept(fd_of(asked->slot), NULL, NULL)
                                 : accept4(fd_of(asked->slot), (void *)&at, &size, asked->flags);
    if (made < 0)
        return made;
    fds[asked->other] = made;
    learn_port(made, reply);
    if (asked->how == 1) {
        size = sizeof at;
        getpeername(made, (void *)&at, &size);
    }
    reply->peer_port = words_of(&at, size, words);
    sprintf(reply->text, " from %s/%d", words, (int)size);
    return made;
}

static long connect_it(const struct command *asked, struct reply *reply)
{
    struct sockaddr_storage at;
    socklen_t size = address_of(asked, &at);
    void *name = asked->place == FAULT ? (void *)8 : &at;
    long done = connect(fd_of(asked->slot), name, size);
    int error = errno;
    learn_port(fd_of(asked->slot), reply);
    errno = error;
    return done;
}

static long bind_it(const struct command *asked, struct reply *reply)
{
    struct sockaddr_storage at;
    socklen_t size = address_of(asked, &at);
    void *name = asked->place == FAULT ? (void *)8 : &at;
    long done = bind(fd_of(asked->slot), name, size);
    if (done == 0)
        learn_port(fd_of(asked->slot), reply);
    return done;
}

static long control_events(const struct command *asked)
{
    struct epoll_event event = {.events = asked->flags, .data.u64 = asked->number};
    return epoll_ctl(fd_of(asked->slot), asked->how, fd_of(asked->other), &event);
}

static void make(const struct command *asked, struct reply *reply)
{
    long result = 0;
    memset(reply, 0, sizeof *reply);
    pipes_broken = 0;
    errno = 0;
    switch (asked->op) {
    case SOCKET:
        result = fds[asked->slot] = socket(asked->how, asked->flags, 0);
        if (result >= 0 && !(asked->flags & SOCK_DGRAM))
            setsockopt(result, IPPROTO_TCP, TCP_NODELAY, &(int){1}, sizeof(int));
        break;
    case BIND: result = bind_it(asked, reply); break;
    case LISTEN:
        result = listen(fd_of(asked->slot), asked->number);
        if (result == 0)
            learn_port(fd_of(asked->slot), reply);
        break;
    case CONNECT: result = connect_it(asked, reply); break;
    case ACCEPT: result = accept_it(asked, reply); break;
    case SEND:
        result = send_it(asked, reply);
        if (asked->learns_port) {
            int error = errno;
            learn_port(fd_of(asked->slot), reply);
            errno = error;
        }
        break;
    case RECV: result = receive_it(asked, reply); break;
    case SHUTDOWN: result = shutdown(fd_of(asked->slot), asked->how); break;
    case CLOSE:
        result = close(fd_of(asked->slot));
        fds[asked->slot] = -1;
        break;
    case DUP: result = duplicate(asked); break;
    case FCNTL: result = change_flags(asked); break;
    case NAME: result = name_it(asked, reply); break;
    case GETOPT: result = get_option(asked, reply); break;
    case SETOPT: result = set_option(asked); break;
    case EPCREATE: result = fds[asked->slot] = epoll_create1(asked->flags); break;
    case EPCTL: result = control_events(asked); break;
    case EPWAIT: result = wait_events(asked, reply); break;
    case POLLWAIT: result = wait_one(asked, reply); break;
    case IOCTL: result = ask_ioctl(asked, reply); break;
    case PASS: result = pass_on(asked); break;
    case TAKE: result = take_over(asked); break;
    case FILL: result = fill(asked); break;
    case DRAIN: result = drain(asked); break;
    case SIGNAL:
        result = waiters[asked->other].state == 1
                     ? pthread_kill(waiters[asked->other].thread, asked->flags)
                     : 0;
        break;
    case WRONG: result = wrong(asked); break;
    default: break;
    }
    reply->result = result;
    reply->error = result < 0 ? errno : 0;
    reply->has_signal = pipes_broken;
}

static void *wait_in_thread(void *argument)
{
    struct waiter *own = argument;
    own->tid = gettid();
    make(&own->asked, &own->done);
    __atomic_store_n(&own->state, 2, __ATOMIC_RELEASE);
    return NULL;
}

static void look(struct view *view)
{
    memset(view, 0, sizeof *view);
    struct pollfd all[SLOTS];
    for (int slot = 0; slot < SLOTS; slot++)
        all[slot] = (struct pollfd){fds[slot], POLLIN | POLLOUT | POLLPRI | POLLRDHUP, 0};
    poll(all, SLOTS, 0);
    for (int slot = 0; slot < SLOTS; slot++) {
        if (fds[slot] < 0)
            continue;
        char *text = bits_of(all[slot].revents, view->slot[slot]);
        int unread = -1;
        if (ioctl(fds[slot], FIONREAD, &unread) == 0)
            sprintf(text, "/%d", unread);
        else if (!*view->slot[slot])
            strcpy(text, ".");
    }
    for (int at = 0; at < WAITERS; at++) {
        struct waiter *one = &waiters[at];
        view->waiting[at] = __atomic_load_n(&one->state, __ATOMIC_ACQUIRE);
        view->thread[at] = one->tid;
        view->asked[at] = one->asked;
        if (view->waiting[at] == 2)
            view->done[at] = one->done;
    }
}

static void execute_again(void)
{
    char slots[256], *text = slots, number[12];
    for (int slot = 0; slot < SLOTS; slot++) {
        bool stays = fds[slot] >= 0 && !(fcntl(fds[slot], F_GETFD) & FD_CLOEXEC);
        text += sprintf(text, "%d,", stays ? fds[slot] : -1);
    }
    sprintf(number, "%d", own_number);
    execl("/proc/self/exe", "life", "--worker", number, slots, NULL);
    _exit(3);
}

static void whole(int fd, void *data, size_t size, bool is_write)
{
    for (size_t at = 0; at < size;) {
        char *from = (char *)data + at;
        ssize_t done = is_write ? write(fd, from, size - at) : read(fd, from, size - at);
        if (done > 0)
            at += done;
        else if (done == 0 || errno != EINTR)
            _exit(4);
    }
}

static void work(void)
{
    struct command asked;
    struct reply reply = {0};
    struct view view;
    for (;;) {
        whole(CONTROL + own_number * 4, &asked, sizeof asked, false);
        int answers = CONTROL + own_number * 4 + 3;
        if (asked.op == OBSERVE) {
            look(&view);
            whole(answers, &view, sizeof view, true);
            for (int at = 0; at < WAITERS; at++)
                if (asked.number >> at & 1 && waiters[at].state == 2) {
                    pthread_join(waiters[at].thread, NULL);
                    waiters[at].state = 0;
                }
            continue;
        }
        if (asked.op == EXIT)
            _exit(0);
        if (asked.op == EXEC)
            execute_again();
        if (asked.op == FORK) {
            memset(&reply, 0, sizeof reply);
            reply.result = fork();
            reply.error = errno;
            if (reply.result == 0) {
                own_number = asked.number;
                memset(waiters, 0, sizeof waiters);
                continue;
            }
        } else if (asked.in_thread) {
            struct waiter *free = &waiters[waiters[0].state != 0];
            free->asked = asked;
            free->state = 1;
            free->tid = 0;
            memset(&reply, 0, sizeof reply);
            pthread_create(&free->thread, NULL, wait_in_thread, free);
        } else {
            make(&asked, &reply);
        }
        whole(answers, &reply, sizeof reply, true);
    }
}

/* ---- the coordinator ------------------------------------------------------------------------ */

enum kind { NONE, TCP, UDP, EPOLL };
enum stage { FRESH, BOUND, LISTENING, LINKED };

/* An open file description. */
static struct object {
    enum kind kind;
    enum stage stage;
    int family, place, port, backlog;
    int peer, listener;   /* objects; -1: none */
    int unread, datagrams; /* what has been sent to it and not read */
    bool waits_for_accept, is_nonblocking, has_shut, is_bound;
} objects[OBJECTS];

static int held[PROCESSES][SLOTS]; /* objects; -1: none */
static bool is_alive[PROCESSES], no_exec[PROCESSES][SLOTS];
static int process_id[PROCESSES], process_fd[PROCESSES];
static int waited[PROCESSES][WAITERS]; /* objects that a thread's call uses; -1: none */
static int in_flight[4], flights;
static struct view views[PROCESSES];
static char before[PROCESSES][SLOTS][64];
static char **expected;
static int steps, limit_ms = 1000;
static uint64_t seed;
static unsigned step_now, drawn;

static unsigned draw(unsigned below)
{
    uint64_t word = seed * 0x9e3779b97f4a7c15u + step_now * 0xbf58476d1ce4e5b9u + ++drawn;
    word = (word ^ word >> 30) * 0xbf58476d1ce4e5b9u;
    word = (word ^ word >> 27) * 0x94d049bb133111ebu;
    return (word ^ word >> 31) % below;
}

/* What differs from the kernel for a reason, and is not drawn; LIFE_DRAW=NUMBER draws it. */
enum allowed {
    NUMBERS, SHARED, SHUT_EARLY, SESSION_PORTS, UDP_NAMES, UDP_WAITS_UNBOUND, MORE, WRITES, INHERITED,
    EDGE, ALLOWED
};
static const char *const reasons[ALLOWED] = {
    [NUMBERS] = "a call of accept that waits holds the number of its descriptor in the kernel, and "
                "none here: the library waits before it accepts",
    [SHARED] = "what one process makes of a TCP socket that others hold, too (bind, listen, "
               "connect), they have from their next call about it on (fork_socket_before_connect)",
    [SHUT_EARLY] = "shutdown of a socket without a peer fails, but the kernel remembers it for the "
                   "sends and the session that follow, where it is forgotten here with bind or connect; "
                   "a listener that was shut is readable (close_while_accepting)",
    [SESSION_PORTS] = "the port of a session is free for bind at once, in TIME-WAIT and before",
    [UDP_NAMES] = "a UDP socket that connect, or bind to port 0, gave a port keeps it when it is "
                  "disconnected; one bound to an IPv4-mapped address has IPV6_V6ONLY set",
    [UDP_WAITS_UNBOUND] = "a receive that waits on a UDP socket before that has a port is the "
                          "kernel's, and names the loopback as the source",
    [WRITES] = "write and writev do not look for the peer's end or reset: before the program has "
               "read it, the first of them fails with EPIPE on a pair",
    [EDGE] = "a TCP socket in an epoll instance is registered anew when it is bound: EPOLLET reports "
             "its state once more",
    [INHERITED] = "a session of which the process has closed its last descriptor that made the last "
                  "call about it ends, for processes that inherited it, by an end of file where it "
                  "is reset",
    [MORE] = "MSG_MORE holds nothing back: a receive that waits may have the first part alone",
};

static bool avoids(enum allowed what)
{
    const char *drawn_still = getenv("LIFE_DRAW");
    return !drawn_still || atoi(drawn_still) != (int)what + 1;
}

static bool chance(unsigned one_in) { return draw(one_in) == 0; }

static long now_us(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000000 + now.tv_nsec / 1000;
}

static void ask(int process, const struct command *asked)
{
    whole(CONTROL + process * 4 + 1, (void *)asked, sizeof *asked, true);
}

static void hear(int process, void *answer, size_t size)
{
    struct pollfd ready = {CONTROL + process * 4 + 2, POLLIN, 0};
    if (poll(&ready, 1, 60000) <= 0) {
        printf("%u process %d does not answer\n", step_now, process);
        fflush(stdout);
        exit(3);
    }
    whole(CONTROL + process * 4 + 2, answer, size, false);
}

static struct object *object_at(int process, int slot)
{
    static struct object none = {.peer = -1};
    return slot >= 0 && held[process][slot] >= 0 ? &objects[held[process][slot]] : &none;
}

static int references(int number)
{
    int count = 0;
    for (int process = 0; process < PROCESSES; process++) {
        for (int slot = 0; slot < SLOTS; slot++)
            count += is_alive[process] && held[process][slot] == number;
        for (int at = 0; at < WAITERS; at++)
            count += is_alive[process] && waited[process][at] == number;
    }
    for (int at = 0; at < flights; at++)
        count += in_flight[at] == number;
    return count;
}

static bool is_waited_for(int number)
{
    for (int process = 0; process < PROCESSES; process++)
        for (int at = 0; at < WAITERS; at++)
            if (is_alive[process] && waited[process][at] == number)
                return true;
    return false;
}

static void collect(void)
{
    bool again = true;
    while (again) {
        again = false;
        for (int one = 0; one < OBJECTS; one++) {
            struct object *object = &objects[one];
            if (object->kind == NONE || object->waits_for_accept || references(one))
                continue;
            for (int other = 0; other < OBJECTS; other++) {
                if (objects[other].peer == one)
                    objects[other].peer = -1;
                if (objects[other].listener == one && objects[other].waits_for_accept)
                    objects[other].waits_for_accept = false, again = true;
            }
            object->kind = NONE;
        }
    }
}

static int new_object(enum kind kind, int family)
{
    for (int one = 0; one < OBJECTS; one++)
        if (objects[one].kind == NONE) {
            objects[one] = (struct object){.kind = kind, .family = family, .peer = -1,
                                           .listener = -1};
            return one;
        }
    exit(5);
}

/* Name of a port: that of the object which has it. */
static char *port_name(int port, const struct object *own, char *text)
{
    if (port == 0)
        return strcpy(text, "0");
    if (own && own->port == port)
        return strcpy(text, "own");
    if (own && own->peer >= 0 && objects[own->peer].port == port)
        return strcpy(text, "peer");
    for (int one = OBJECTS - 1; one >= 0; one--)
        if (objects[one].kind != NONE && objects[one].port == port) {
            sprintf(text, "of %d", one);
            return text;
        }
    return strcpy(text, "?");
}

/* ---- what a line says ------------------------------------------------------------------------ */

/* Every fourth seed compares the numbers of descriptors, and has no call of accept that waits. */
static bool shows_numbers(void) { return seed % 4 == 0 || !avoids(NUMBERS); }

static bool makes_descriptor(enum op op)
{
    return op == SOCKET || op == ACCEPT || op == DUP || op == EPCREATE || op == TAKE;
}

static void outcome_of(const struct command *asked, struct reply *reply,
                       const struct object *object, char *text)
{
    char port[16];
    if (reply->result < 0 && reply->error)
        text += sprintf(text, "%s", strerrorname_np(reply->error));
    else if (makes_descriptor(asked->op) && !shows_numbers())
        text += sprintf(text, "ok");
    else
        text += sprintf(text, "%ld", reply->result);
    if (asked->op == EPWAIT && reply->result > 0)
        for (int datum = 0; datum < OBJECTS; datum++)
            for (int at = 0; at < reply->count; at++)
                if (reply->events[at].datum == datum) {
                    text += sprintf(text, " %d:", datum);
                    text = bits_of(reply->events[at].bits, text);
                }
    text += sprintf(text, "%s", reply->text);
    if (reply->peer_port)
        text += sprintf(text, " port %s", port_name(reply->peer_port, object, port));
    if (reply->has_signal)
        sprintf(text, " SIGPIPE");
}

/* What has changed since the last step. */
static void changes(char *text)
{
    for (int process = 0; process < PROCESSES; process++) {
        if (!is_alive[process])
            continue;
        struct view *view = &views[process];
        for (int slot = 0; slot < SLOTS; slot++)
            if (strcmp(view->slot[slot], before[process][slot]))
                text += sprintf(text, " %d.%d:%s", process, slot,
                                *view->slot[slot] ? view->slot[slot] : "-");
        for (int at = 0; at < WAITERS; at++)
            if (view->waiting[at] == 2) {
                char words[1024];
                const struct object *object =
                    waited[process][at] >= 0 ? &objects[waited[process][at]] : NULL;
                outcome_of(&view->asked[at], &view->done[at], object, words);
                text += sprintf(text, " %d.thread%d %s %s;", process, at,
                                op_names[view->asked[at].op], words);
            }
    }
}

static bool all_sleep(void)
{
    for (int process = 0; process < PROCESSES; process++)
        for (int at = 0; is_alive[process] && at < WAITERS; at++) {
            if (views[process].waiting[at] != 1)
                continue;
            char path[64], text[256] = "";
            sprintf(path, "/proc/%d/task/%d/stat", process_id[process],
                    views[process].thread[at]);
            FILE *file = fopen(path, "r");
            char *end = NULL;
            if (file) {
                text[fread(text, 1, sizeof text - 1, file)] = 0;
                fclose(file);
                end = strrchr(text, ')');
            }
            if (!end || end[2] != 'S')
                return false;
        }
    return true;
}

/* ---- what a call has done to the model -------------------------------------------------------- */

static void put(int process, int slot, int number, bool closes_on_exec)
{
    held[process][slot] = number;
    no_exec[process][slot] = closes_on_exec;
}

static void note_accepted(int process, const struct command *asked, const struct reply *reply,
                          int listener)
{
    int made = new_object(TCP, objects[listener].family);
    struct object *object = &objects[made];
    object->stage = LINKED;
    object->port = reply->port;
    object->is_nonblocking = asked->how == 2 && asked->flags & SOCK_NONBLOCK;
    for (int one = 0; one < OBJECTS; one++)
        if (objects[one].waits_for_accept && objects[one].port == reply->peer_port) {
            object->peer = one;
            object->unread = objects[one].datagrams; /* bytes sent before */
            objects[one].datagrams = 0;
            objects[one].peer = made;
            objects[one].waits_for_accept = false;
        }
    put(process, asked->other, made, asked->how == 2 && asked->flags & SOCK_CLOEXEC);
}

static struct object *receiver_of(const struct object *sender)
{
    return sender->peer >= 0 ? &objects[sender->peer] : NULL;
}

static void note_connected(int number, const struct command *asked, const struct reply *reply)
{
    struct object *object = &objects[number];
    bool is_done = reply->result == 0 || reply->error == EINPROGRESS;
    if (reply->port)
        object->port = reply->port;
    if (object->kind == UDP) {
        if (reply->result < 0)
            return;
        object->peer = asked->place == UNSPEC || asked->number < 0 ? -1 : asked->number;
        object->stage = object->stage == FRESH ? BOUND : object->stage;
        if (!object->port)
            object->stage = FRESH;
        return;
    }
    if (!is_done || object->kind != TCP || object->stage == LINKED)
        return;
    if (asked->place == UNSPEC)
        return;
    object->stage = LINKED;
    if (asked->number >= 0 && objects[asked->number].stage == LISTENING) {
        object->listener = asked->number;
        object->waits_for_accept = true;
    }
}

static void note(int process, const struct command *asked, const struct reply *reply, int number)
{
    struct object *object = number >= 0 ? &objects[number] : NULL, *other;
    bool is_ok = reply->result >= 0;
    switch (asked->op) {
    case SOCKET:
        if (!is_ok)
            break;
        number = new_object(asked->flags & SOCK_DGRAM ? UDP : TCP, asked->how);
        objects[number].is_nonblocking = asked->flags & SOCK_NONBLOCK;
        put(process, asked->slot, number, asked->flags & SOCK_CLOEXEC);
        break;
    case EPCREATE:
        if (is_ok)
            put(process, asked->slot, new_object(EPOLL, 0), asked->flags != 0);
        break;
    case BIND:
        if (is_ok && object)
            object->stage = BOUND, object->port = reply->port, object->place = asked->place,
            object->is_bound = asked->port != 0;
        break;
    case LISTEN:
        if (is_ok && object) {
            if (object->stage == FRESH)
                object->place = object->family == AF_INET ? ANY4 : ANY6;
            object->stage = LISTENING, object->port = reply->port;
            object->backlog = asked->number;
        }
        break;
    case CONNECT:
        if (object)
            note_connected(number, asked, reply);
        break;
    case ACCEPT:
        if (is_ok && object)
            note_accepted(process, asked, reply, number);
        break;
    case SEND:
        /* A send gives a UDP socket a port, even one that fails. */
        if (object && object->kind == UDP && reply->port)
            object->port = reply->port;
        if (!is_ok || !object)
            break;
        if (object->kind == UDP) {
            other = asked->place != NOWHERE ? (asked->other >= 0 ? &objects[asked->other] : NULL)
                                            : receiver_of(object);
            if (other)
                other->datagrams += asked->how == 6 ? 2 : 1;
        } else if ((other = receiver_of(object))) {
            other->unread += reply->result;
        } else {
            object->datagrams += reply->result;
        }
        break;
    case RECV:
        if (!is_ok || !object || asked->flags & MSG_PEEK)
            break;
        if (object->kind == UDP)
            object->datagrams -= object->datagrams > 0;
        else
            object->unread -= reply->result;
        break;
    case SHUTDOWN:
        if (is_ok && object)
            object->has_shut = true;
        break;
    case CLOSE: held[process][asked->slot] = -1; break;
    case DUP:
        if (is_ok)
            put(process, asked->other, number,
                asked->how == 2 || asked->how == 4 ? true
                : asked->how == 1 && asked->other == asked->slot
                    ? no_exec[process][asked->slot]
                    : false);
        break;
    case FCNTL:
        if (!is_ok || !object)
            break;
        if (asked->how < 4)
            object->is_nonblocking = !(asked->how & 1);
        else if (asked->how < 6)
            no_exec[process][asked->slot] = asked->how == 4;
        break;
    case PASS:
        if (is_ok)
            in_flight[flights++] = number;
        break;
    case TAKE:
        if (flights > 0) {
            put(process, asked->other, in_flight[0], asked->flags & MSG_CMSG_CLOEXEC);
            memmove(in_flight, in_flight + 1, --flights * sizeof *in_flight);
        }
        break;
    default: break;
    }
}

/* Waits until the line is the expected one, or nothing changes; writes it. */
static void settle(const char *head)
{
    static char line[16384], last[16384];
    const char *wanted = expected ? expected[step_now] : NULL;
    long begun = now_us();
    int quiet = 0;
    struct command look_now = {.op = OBSERVE};
    *last = 0;
    for (int turn = 0;; turn++) {
        for (int process = 0; process < PROCESSES; process++)
            if (is_alive[process])
                ask(process, &look_now);
        for (int process = 0; process < PROCESSES; process++)
            if (is_alive[process])
                hear(process, &views[process], sizeof views[process]);
        strcpy(line, head);
        strcat(line, " |");
        changes(line + strlen(line));
        long spent = now_us() - begun;
        if (wanted && !strcmp(line, wanted) && all_sleep())
            break;
        quiet = !strcmp(line, last) && all_sleep() ? quiet + 1 : 0;
        if (!wanted && quiet >= 3)
            break;
        if (spent > limit_ms * 1000L)
            break;
        strcpy(last, line);
        usleep(!wanted ? 30 : turn < 20 ? 50 : 1000);
    }
    puts(line);
    if (wanted && strcmp(line, wanted) && !getenv("LIFE_ON")) {
        printf("expected:\n%s\n", wanted);
        fflush(stdout);
        exit(1);
    }
    for (int process = 0; process < PROCESSES; process++) {
        if (!is_alive[process])
            continue;
        memcpy(before[process], views[process].slot, sizeof before[process]);
        struct command collected = {.op = OBSERVE};
        for (int at = 0; at < WAITERS; at++)
            if (views[process].waiting[at] == 2) {
                collected.number |= 1 << at;
                note(process, &views[process].asked[at], &views[process].done[at],
                     waited[process][at]);
                waited[process][at] = -1;
            }
        if (collected.number) {
            struct view again;
            ask(process, &collected);
            hear(process, &again, sizeof again);
        }
    }
    collect();
}

/* ---- steps ---------------------------------------------------------------------------------- */

static int some_process(void)
{
    int process = draw(PROCESSES);
    while (!is_alive[process])
        process = (process + 1) % PROCESSES;
    return process;
}

static bool is_awaited(int process, int slot)
{
    for (int at = 0; at < WAITERS; at++)
        if (waited[process][at] >= 0 && views[process].waiting[at] == 1
            && views[process].asked[at].op == ACCEPT && views[process].asked[at].other == slot)
            return true;
    return false;
}

static int free_slot(int process)
{
    int from = draw(SLOTS);
    for (int at = 0; at < SLOTS; at++) {
        int slot = (from + at) % SLOTS;
        if (held[process][slot] < 0 && !is_awaited(process, slot))
            return slot;
    }
    return -1;
}

/* A slot whose object has one of these kinds and stages (bits). */
static int slot_with(int process, unsigned kinds, unsigned stages)
{
    int from = draw(SLOTS);
    for (int at = 0; at < SLOTS; at++) {
        int slot = (from + at) % SLOTS;
        struct object *object = object_at(process, slot);
        if (kinds >> object->kind & 1 && object->kind != NONE && stages >> object->stage & 1)
            return slot;
    }
    return -1;
}

static int object_with(unsigned kinds, unsigned stages)
{
    int from = draw(OBJECTS);
    for (int at = 0; at < OBJECTS; at++) {
        int number = (from + at) % OBJECTS;
        struct object *object = &objects[number];
        if (object->kind != NONE && kinds >> object->kind & 1 && stages >> object->stage & 1
            && references(number))
            return number;
    }
    return -1;
}

enum { TCPS = 1 << TCP, UDPS = 1 << UDP, EPOLLS = 1 << EPOLL, ALL = TCPS | UDPS | EPOLLS,
       ANY = 15, SOCKETS = TCPS | UDPS };

static bool has_free_waiter(int process)
{
    return waited[process][0] < 0 || waited[process][1] < 0;
}

static int place_to_reach(const struct object *from, const struct object *to)
{
    bool v6 = from->family == AF_INET6;
    switch (to->place) {
    case OWN6: return OWN6;
    case ANY6: return v6 ? (int[]){OWN6, MAPPED}[draw(2)] : OWN4;
    default: return v6 ? MAPPED : OWN4;
    }
}

static bool draw_socket(int process, struct command *asked)
{
    asked->slot = free_slot(process);
    asked->how = chance(3) ? AF_INET6 : AF_INET;
    asked->flags = (chance(3) ? SOCK_DGRAM : SOCK_STREAM) | (chance(2) ? SOCK_NONBLOCK : 0)
                   | (chance(5) ? SOCK_CLOEXEC : 0);
    return asked->slot >= 0;
}

/* True for a TCP socket without a name that several processes hold: what one of them makes of it,
 * the others have from their next call on (`fork_socket_before_connect`). */
static bool is_shared(int number)
{
    int holders = 0;
    for (int process = 0; process < PROCESSES; process++) {
        bool holds = false;
        for (int slot = 0; slot < SLOTS; slot++)
            holds |= is_alive[process] && held[process][slot] == number;
        holders += holds;
    }
    for (int at = 0; at < flights; at++)
        holders += in_flight[at] == number;
    return avoids(SHARED) && objects[number].kind == TCP && (objects[number].stage == FRESH || objects[number].stage == BOUND)
           && holders > 1;
}

static bool draw_bind(int process, struct command *asked)
{
    asked->slot = slot_with(process, SOCKETS, chance(6) ? ANY : 1 << FRESH);
    struct object *object = object_at(process, asked->slot);
    bool v6 = object->family == AF_INET6;
    asked->place = v6 ? (int[]){OWN6, ANY6, MAPPED}[draw(3)] : (int[]){OWN4, OWN4, ANY4}[draw(3)];
    if (chance(12))
        asked->place = (int[]){FOREIGN, UNSPEC, SHORT, FAULT, ALIEN, OWN4, OWN6}[draw(7)];
    unsigned stages = avoids(SESSION_PORTS) ? ANY & ~(1 << LINKED) : ANY;
    int other = chance(8) ? object_with(1 << object->kind, stages) : -1;
    if (other >= 0)
        asked->port = objects[other].port;
    return asked->slot >= 0 && !is_shared(held[process][asked->slot]);
}

static bool draw_listen(int process, struct command *asked)
{
    asked->slot = slot_with(process, TCPS, chance(6) ? ANY : 1 << BOUND);
    if (asked->slot < 0)
        asked->slot = slot_with(process, ALL, 1 << FRESH);
    asked->number = chance(6) ? 1 : 5 + draw(12);
    return asked->slot >= 0 && !is_shared(held[process][asked->slot]);
}

static int awaiting(int listener)
{
    int count = 0;
    for (int one = 0; one < OBJECTS; one++)
        count += objects[one].waits_for_accept && objects[one].listener == listener;
    return count;
}

static bool draw_connect(int process, struct command *asked)
{
    bool is_tcp = !chance(3);
    asked->slot = is_tcp ? slot_with(process, TCPS, chance(8) ? ANY : 1 << FRESH | 1 << BOUND)
                         : slot_with(process, UDPS, ANY);
    struct object *object = object_at(process, asked->slot);
    if (asked->slot < 0 || is_waited_for(held[process][asked->slot]))
        return false;
    asked->number = is_tcp ? object_with(TCPS, chance(10) ? 1 << BOUND : 1 << LISTENING)
                           : object_with(UDPS, 1 << BOUND);
    if (asked->number < 0 || asked->number == held[process][asked->slot]
        || is_shared(held[process][asked->slot]))
        return false;
    struct object *to = &objects[asked->number];
    if (is_tcp && awaiting(asked->number) >= (to->backlog < 4 ? to->backlog : 4))
        return false;
    asked->port = to->port;
    if (object->port == asked->port || !asked->port)
        return false;
    asked->place = place_to_reach(object, to);
    if (object->family == AF_INET && (asked->place == OWN6))
        asked->place = OWN6; /* EAFNOSUPPORT */
    if (chance(14))
        asked->place = (int[]){SHORT, FAULT, ALIEN}[draw(3)];
    else if (!is_tcp && chance(4) && (object->is_bound || !avoids(UDP_NAMES)))
        asked->place = UNSPEC;
    asked->in_thread = !object->is_nonblocking;
    return !asked->in_thread || has_free_waiter(process);
}

static bool draw_accept(int process, struct command *asked)
{
    asked->slot = slot_with(process, ALL, chance(10) ? ANY : 1 << LISTENING);
    asked->other = free_slot(process);
    if (asked->slot < 0 || asked->other < 0)
        return false;
    struct object *object = object_at(process, asked->slot);
    asked->how = draw(3);
    asked->flags = (chance(2) ? SOCK_NONBLOCK : 0) | (chance(4) ? SOCK_CLOEXEC : 0);
    asked->in_thread = object->stage == LISTENING && !object->is_nonblocking;
    return !is_waited_for(held[process][asked->slot])
           && (!asked->in_thread || (!shows_numbers() && has_free_waiter(process)));
}

static bool draw_send(int process, struct command *asked)
{
    asked->slot = slot_with(process, chance(20) ? ALL : SOCKETS,
                            chance(8) ? ANY & ~(1 << LISTENING) : 1 << LINKED | 1 << BOUND);
    if (asked->slot < 0)
        return false;
    struct object *object = object_at(process, asked->slot), *to = receiver_of(object);
    asked->place = NOWHERE;
    asked->other = -1;
    asked->how = draw(6);
    asked->number = chance(10) ? 0 : 1 + draw(chance(4) ? 3000 : 60);
    asked->flags = MSG_DONTWAIT | (chance(4) ? 0 : MSG_NOSIGNAL);
    if (object->kind == TCP) {
        bool is_over = !object->waits_for_accept && (!to || to->has_shut);
        if (object->stage == LINKED && is_over && (asked->how == 1 || asked->how == 2)
            && avoids(WRITES))
            return false;
        if (asked->how == 5 && to && is_waited_for(object->peer) && avoids(MORE))
            return false;
        if ((to ? to->unread : object->datagrams) + asked->number > UNREAD_MAX)
            return false;
        if (chance(12))
            asked->place = OWN4, asked->port = 9;
        return object->stage != LISTENING;
    }
    asked->learns_port = !object->port;
    asked->how = (int[]){0, 1, 2, 3, 4, 4, 6}[draw(7)];
    if (asked->how >= 3 && !chance(4)) {
        asked->other = object_with(UDPS, 1 << BOUND);
        to = asked->other >= 0 ? &objects[asked->other] : NULL;
        if (!to)
            return false;
        asked->place = place_to_reach(object, to);
        asked->port = to->port;
    }
    return !to || to->datagrams < 12;
}

static bool draw_receive(int process, struct command *asked)
{
    asked->slot = slot_with(process, chance(20) ? ALL : SOCKETS,
                            chance(8) ? ANY & ~(1 << LISTENING) : 1 << LINKED | 1 << BOUND);
    if (asked->slot < 0)
        return false;
    struct object *object = object_at(process, asked->slot);
    asked->how = draw(5);
    asked->number = chance(12) ? 0 : 1 + draw(chance(3) ? 5000 : 80);
    asked->flags = chance(5) ? MSG_PEEK : 0;
    if (object->kind == UDP && chance(6))
        asked->flags |= MSG_TRUNC;
    if (chance(10))
        asked->flags |= MSG_WAITALL;
    bool waits = chance(3);
    if (object->kind == UDP && !object->port && avoids(UDP_WAITS_UNBOUND))
        waits = false;
    if (asked->how == 1 || asked->how == 2)
        waits = !object->is_nonblocking, asked->flags = 0;
    else if (!waits)
        asked->flags |= MSG_DONTWAIT;
    asked->in_thread = waits && object->kind != EPOLL;
    return !is_waited_for(held[process][asked->slot])
           && (!asked->in_thread || has_free_waiter(process));
}

static bool draw_option(int process, struct command *asked)
{
    asked->slot = slot_with(process, chance(20) ? ALL : SOCKETS, ANY);
    asked->number = draw(OPTIONS);
    if (asked->op == GETOPT) {
        if (options[asked->number].name == IPV6_V6ONLY && avoids(UDP_NAMES)
            && options[asked->number].level == IPPROTO_IPV6
            && object_at(process, asked->slot)->kind == UDP)
            return false;
        if (chance(8))
            asked->flags = (int[]){1, 1, 2, 3, 60}[draw(5)];
        asked->how = chance(30);
        return asked->slot >= 0;
    }
    const struct option *option = &options[asked->number];
    asked->flags = (int[]){0, 1, 1, 2, 8, 100, -5}[draw(7)];
    asked->other = chance(10) ? (int)draw(9) : -1;
    asked->how = chance(30);
    if (option->level == SOL_SOCKET && option->name == SO_REUSEADDR
        && object_at(process, asked->slot)->kind == UDP)
        return false;
    return asked->slot >= 0 && option->is_settable;
}

static bool draw_epoll(int process, struct command *asked)
{
    if (asked->op == EPCREATE) {
        asked->slot = free_slot(process);
        asked->flags = chance(3) ? EPOLL_CLOEXEC : 0;
        return asked->slot >= 0;
    }
    asked->slot = slot_with(process, EPOLLS, ANY);
    if (asked->slot < 0)
        return false;
    if (asked->op == EPWAIT) {
        asked->how = draw(2);
        asked->in_thread = chance(4);
        return !is_waited_for(held[process][asked->slot])
               && (!asked->in_thread || has_free_waiter(process));
    }
    asked->other = slot_with(process, chance(8) ? ALL : SOCKETS, ANY);
    asked->how = (int[]){EPOLL_CTL_ADD, EPOLL_CTL_ADD, EPOLL_CTL_ADD, EPOLL_CTL_MOD,
                         EPOLL_CTL_DEL}[draw(5)];
    asked->flags = (int[]){EPOLLIN, EPOLLOUT, EPOLLIN | EPOLLOUT, EPOLLIN | EPOLLRDHUP}[draw(4)];
    asked->flags |= chance(3) ? (int)EPOLLET : chance(4) ? EPOLLONESHOT : 0;
    asked->number = asked->other >= 0 ? held[process][asked->other] : 0;
    if (asked->flags & (int)EPOLLET && object_at(process, asked->other)->kind == TCP
        && object_at(process, asked->other)->stage == FRESH && avoids(EDGE))
        return false;
    return asked->other >= 0;
}

static bool draw_rest(int process, struct command *asked)
{
    asked->slot = slot_with(process, ALL, ANY);
    struct object *object = object_at(process, asked->slot);
    bool is_used = false;
    for (int at = 0; at < WAITERS; at++)
        is_used |= asked->slot >= 0 && waited[process][at] == held[process][asked->slot];
    switch (asked->op) {
    case SHUTDOWN:
        asked->how = draw(3);
        if (object->kind == TCP ? object->stage <= LISTENING : object->peer < 0)
            if (avoids(SHUT_EARLY))
                return false;
        return asked->slot >= 0 && (object->stage != LISTENING || chance(8));
    case CLOSE: return asked->slot >= 0 && !is_used;
    case DUP:
        asked->how = draw(5);
        asked->other = free_slot(process);
        if (asked->how == 1 || asked->how == 2) {
            asked->other = slot_with(process, ALL, ANY);
            for (int at = 0; at < WAITERS; at++)
                is_used |= asked->other >= 0 && waited[process][at] == held[process][asked->other];
        }
        return asked->slot >= 0 && asked->other >= 0 && !is_used;
    case FCNTL: asked->how = draw(8); return asked->slot >= 0;
    case NAME:
        asked->how = draw(2);
        asked->number = chance(8) ? (int)draw(20) : 128;
        asked->place = chance(20) ? FAULT : NOWHERE;
        return asked->slot >= 0;
    case POLLWAIT:
        asked->how = draw(3);
        asked->flags = (int[]){POLLIN, POLLOUT, POLLIN | POLLOUT}[draw(3)];
        asked->in_thread = chance(2);
        return asked->slot >= 0 && (!asked->in_thread || has_free_waiter(process));
    case IOCTL:
        asked->how = draw(6);
        asked->flags = chance(15);
        return asked->slot >= 0;
    case PASS: return asked->slot >= 0 && flights < 3 && object->kind != EPOLL;
    case TAKE:
        asked->other = free_slot(process);
        asked->flags = chance(2) ? MSG_CMSG_CLOEXEC : 0;
        return asked->other >= 0 && flights > 0;
    case SIGNAL:
        asked->other = draw(2);
        asked->flags = chance(3) ? SIGUSR2 : SIGUSR1;
        return waited[process][asked->other] >= 0;
    default:
        asked->number = draw(19);
        asked->how = draw(4);
        return object->stage != LISTENING;
    }
}

/* Fills a connection one way and reads all of it. */
static bool fill_and_drain(int process, char *text)
{
    struct command asked = {.op = FILL, .slot = slot_with(process, TCPS, 1 << LINKED)};
    struct object *object = object_at(process, asked.slot), *to = receiver_of(object);
    if (asked.slot < 0 || !to || to->unread || object->has_shut || to->has_shut || is_waited_for(object->peer))
        return false;
    struct command drain = {.op = DRAIN};
    int reader = draw(PROCESSES), turn = 0;
    for (; turn < PROCESSES * SLOTS; turn++) {
        reader = (reader + (turn % SLOTS == 0)) % PROCESSES;
        drain.slot = turn % SLOTS;
        if (is_alive[reader] && held[reader][drain.slot] == object->peer)
            break;
    }
    struct reply reply;
    if (turn == PROCESSES * SLOTS)
        return false;
    ask(process, &asked);
    hear(process, &reply, sizeof reply);
    long total = reply.result, done = 0, begun = now_us();
    while (done < total && now_us() - begun < 3000000) {
        drain.number = done;
        ask(reader, &drain);
        hear(reader, &reply, sizeof reply);
        if (reply.result > 0)
            done += reply.result;
        else if (reply.result == 0 || reply.error != EAGAIN)
            break;
        else
            usleep(200);
    }
    sprintf(text, "%u p%d fill %d p%d drain %d = %s, %s", step_now, process, asked.slot, reader,
            drain.slot, total > 65536 ? "full" : "hardly filled",
            done == total ? "all read" : reply.result == -1000 ? "wrong" : "not all read");
    return true;
}

/* A process that still has a session makes a call about it. */
static void touch(int number)
{
    for (int process = 0; process < PROCESSES; process++)
        for (int slot = 0; is_alive[process] && slot < SLOTS; slot++)
            if (held[process][slot] == number) {
                struct command asked = {.op = NAME, .slot = slot, .number = 128,
                                        .place = NOWHERE};
                struct reply reply;
                ask(process, &asked);
                hear(process, &reply, sizeof reply);
                return;
            }
}

static void touch_sessions(void)
{
    for (int one = 0; one < OBJECTS && avoids(INHERITED); one++)
        if (objects[one].kind == TCP && objects[one].stage == LINKED)
            touch(one);
}

static void end_process(int process, struct command *asked)
{
    ask(process, asked);
    struct pollfd ended = {process_fd[process], POLLIN, 0};
    if (poll(&ended, 1, 20000) != 1)
        printf("%u process %d does not end\n", step_now, process);
    close(process_fd[process]);
    is_alive[process] = false;
}

static void start_process(int process, int id)
{
    process_id[process] = id;
    process_fd[process] = syscall(SYS_pidfd_open, id, 0);
    is_alive[process] = true;
    memset(before[process], 0, sizeof before[process]);
    for (int at = 0; at < WAITERS; at++)
        waited[process][at] = -1;
}

/* Steps about processes; true if one was made. */
static bool step_of_process(int process, struct command *asked, char *text)
{
    int alive = 0, fresh = -1;
    for (int one = 0; one < PROCESSES; one++) {
        alive += is_alive[one];
        if (!is_alive[one])
            fresh = one;
    }
    struct reply reply;
    sprintf(text, "%u p%d %s = ok", step_now, process, op_names[asked->op]);
    if (asked->op == FORK) {
        if (fresh < 0)
            return false;
        asked->number = fresh;
        ask(process, asked);
        hear(process, &reply, sizeof reply);
        start_process(fresh, reply.result);
        memcpy(held[fresh], held[process], sizeof held[fresh]);
        memcpy(no_exec[fresh], no_exec[process], sizeof no_exec[fresh]);
        return true;
    }
    if (asked->op == EXIT) {
        if (alive < 2)
            return false;
        end_process(process, asked);
        return true;
    }
    ask(process, asked);
    for (int slot = 0; slot < SLOTS; slot++)
        if (no_exec[process][slot])
            held[process][slot] = -1, no_exec[process][slot] = false;
    for (int at = 0; at < WAITERS; at++)
        waited[process][at] = -1;
    return true;
}

/* Makes a call until its outcome is the expected one, where that has no effect. */
static void make_call(int process, struct command *asked, const char *head, char *text,
                      struct reply *reply)
{
    int number = asked->slot >= 0 ? held[process][asked->slot] : -1;
    const struct object *object = number >= 0 ? &objects[number] : NULL;
    const char *wanted = expected ? expected[step_now] : NULL;
    long begun = now_us();
    struct reply sum = {0};
    for (;;) {
        ask(process, asked);
        hear(process, reply, sizeof *reply);
        if (asked->op == EPWAIT && reply->result >= 0) {
            for (int at = 0; at < reply->count; at++) {
                int place = 0;
                while (place < sum.count && sum.events[place].datum != reply->events[at].datum)
                    place++;
                if (place == 16)
                    continue;
                sum.events[place].datum = reply->events[at].datum;
                sum.events[place].bits |= reply->events[at].bits;
                sum.count += place == sum.count;
            }
            sum.result = sum.count;
            *reply = sum;
        }
        outcome_of(asked, reply, object, text);
        size_t length = strlen(head), rest = strlen(text);
        bool is_wanted = !wanted || (!strncmp(wanted, head, length)
                                     && !strncmp(wanted + length, text, rest)
                                     && !strncmp(wanted + length + rest, " |", 2));
        if (!wanted && asked->op == IOCTL && asked->how == 1 && reply->result == 0)
            is_wanted = !strcmp(text, "0 0") || now_us() - begun > 60000;
        bool may_repeat = asked->op == EPWAIT || asked->op == POLLWAIT || asked->op == IOCTL
                          || asked->op == NAME || reply->error == EAGAIN;
        if (is_wanted || !may_repeat || now_us() - begun > limit_ms * 1000L)
            return;
        usleep(200);
    }
}

static bool draw_call(int process, struct command *asked)
{
    static const struct { enum op op; int weight; } weights[] = {
        {SOCKET, 10}, {BIND, 8}, {LISTEN, 6}, {CONNECT, 14}, {ACCEPT, 12}, {SEND, 22}, {RECV, 22},
        {SHUTDOWN, 4}, {CLOSE, 9}, {DUP, 4}, {FCNTL, 4}, {NAME, 5}, {GETOPT, 8}, {SETOPT, 6},
        {EPCREATE, 1}, {EPCTL, 6}, {EPWAIT, 8}, {POLLWAIT, 4}, {IOCTL, 4}, {FORK, 2}, {EXEC, 1},
        {EXIT, 1}, {PASS, 2}, {TAKE, 2}, {FILL, 1}, {SIGNAL, 2}, {WRONG, 2},
    };
    int sum = 0, count = sizeof weights / sizeof *weights, at = 0;
    for (int one = 0; one < count; one++)
        sum += weights[one].weight;
    int place = draw(sum);
    while (place >= weights[at].weight)
        place -= weights[at++].weight;
    asked->op = weights[at].op;
    asked->slot = asked->other = -1;
    asked->step = step_now;
    switch (asked->op) {
    case SOCKET: return draw_socket(process, asked);
    case BIND: return draw_bind(process, asked);
    case LISTEN: return draw_listen(process, asked);
    case CONNECT: return draw_connect(process, asked);
    case ACCEPT: return draw_accept(process, asked);
    case SEND: return draw_send(process, asked);
    case RECV: return draw_receive(process, asked);
    case GETOPT:
    case SETOPT: return draw_option(process, asked);
    case EPCREATE:
    case EPCTL:
    case EPWAIT: return draw_epoll(process, asked);
    case FORK:
    case EXEC:
    case EXIT:
    case FILL: return true;
    default: return draw_rest(process, asked);
    }
}

static void step(void)
{
    char head[2048], text[1024];
    struct command asked = {0};
    struct reply reply;
    drawn = 0;
    int process = some_process();
    if (!draw_call(process, &asked))
        return;
    int number = asked.slot >= 0 ? held[process][asked.slot] : -1;
    switch (asked.op) {
    case FORK: case EXEC: case EXIT:
        if (step_of_process(process, &asked, head)) {
            touch_sessions();
            settle(head);
        }
        return;
    case FILL:
        if (fill_and_drain(process, head))
            settle(head);
        return;
    default: break;
    }
    char port[16];
    sprintf(head, "%u p%d %s %d#%d %d how %d flags %x number %d at %s port %s%s = ", step_now,
            process, op_names[asked.op], asked.slot, number, asked.other, asked.how, asked.flags,
            asked.number, place_names[asked.place], port_name(asked.port, NULL, port),
            asked.in_thread ? " in thread" : "");
    if (asked.in_thread) {
        ask(process, &asked);
        hear(process, &reply, sizeof reply);
        waited[process][waited[process][0] >= 0] = number;
        strcat(head, "begun");
        settle(head);
        return;
    }
    make_call(process, &asked, head, text, &reply);
    note(process, &asked, &reply, number);
    strcat(head, text);
    if (asked.op == CLOSE || asked.op == DUP)
        touch_sessions();
    settle(head);
}

static void read_expected(const char *path)
{
    FILE *file = fopen(path, "r");
    static char line[16384];
    expected = calloc(steps + 1, sizeof *expected);
    while (file && fgets(line, sizeof line, file)) {
        line[strcspn(line, "\n")] = 0;
        unsigned number = strtoul(line, NULL, 10);
        if (*line >= '0' && *line <= '9' && number < (unsigned)steps)
            expected[number] = strdup(line);
    }
    if (!file) {
        perror(path);
        exit(2);
    }
    fclose(file);
}

static bool *read_skipped(void)
{
    bool *skipped = calloc(steps + 1, 1);
    const char *text = getenv("LIFE_SKIP");
    for (char *end; text && *text; text = *end ? end + 1 : end) {
        long number = strtol(text, &end, 10);
        if (end == text)
            break;
        if (number >= 0 && number < steps)
            skipped[number] = true;
    }
    return skipped;
}

/* Workers hold the ends of one another's pipes, so none would end by itself. */
static void end_all(void)
{
    for (int process = 0; process < PROCESSES; process++)
        if (is_alive[process])
            kill(process_id[process], SIGKILL);
}

static void begin(void)
{
    int ends[2];
    for (int one = 0; one < PROCESSES; one++)
        for (int way = 0; way < 2; way++) {
            NEED(pipe(ends));
            for (int end = 0; end < 2; end++) {
                NEED(dup2(ends[end], CONTROL + one * 4 + way * 2 + end));
                close(ends[end]);
            }
        }
    NEED(socketpair(AF_UNIX, SOCK_DGRAM, 0, ends));
    for (int end = 0; end < 2; end++) {
        NEED(dup2(ends[end], CHANNEL + end));
        close(ends[end]);
    }
    memset(fds, -1, sizeof fds);
    memset(held, -1, sizeof held);
    memset(waited, -1, sizeof waited);
    int id = NEED(fork());
    if (id == 0)
        work();
    start_process(0, id);
    atexit(end_all);
    close(CHANNEL);
    close(CHANNEL + 1);
}

int main(int count, char **words)
{
    const char *v6 = getenv("SIDECORE_CASES_V6");
    own4.s_addr = case_address();
    inet_pton(AF_INET6, v6 ? v6 : "::1", &own6);
    struct sigaction action = {.sa_handler = on_signal};
    sigaction(SIGUSR1, &action, NULL);
    action.sa_flags = SA_RESTART;
    sigaction(SIGUSR2, &action, NULL);
    sigaction(SIGPIPE, &action, NULL);
    signal(SIGCHLD, SIG_IGN);
    if (count == 4 && !strcmp(words[1], "--worker")) {
        own_number = atoi(words[2]);
        char *text = words[3];
        for (int slot = 0; slot < SLOTS; slot++, text++)
            fds[slot] = strtol(text, &text, 10);
        work();
    }
    if (count == 2 && !strcmp(words[1], "--allowed")) {
        for (int one = 0; one < ALLOWED; one++)
            printf("%d. %s\n", one + 1, reasons[one]);
        return 0;
    }
    if (count != 3) {
        fprintf(stderr, "usage: life SEED STEPS\n");
        return 2;
    }
    seed = strtoull(words[1], NULL, 10);
    steps = atoi(words[2]);
    if (getenv("LIFE_WAIT"))
        limit_ms = atoi(getenv("LIFE_WAIT"));
    if (getenv("LIFE_EXPECT"))
        read_expected(getenv("LIFE_EXPECT"));
    bool *skipped = read_skipped();
    begin();
    for (step_now = 0; step_now < (unsigned)steps; step_now++)
        if (!skipped[step_now])
            step();
    for (int process = 0; process < PROCESSES; process++)
        if (is_alive[process])
            end_process(process, &(struct command){.op = EXIT});
    printf("end\n");
    return 0;
}
