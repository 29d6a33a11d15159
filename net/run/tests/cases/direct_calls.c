/* The system calls themselves, not libc's functions, as a static program makes them; and accept4's
 * flags. */
#include "_case.h"

int main(void)
{
    struct sockaddr_in name = {.sin_family = AF_INET, .sin_addr.s_addr = case_address()};
    socklen_t size = sizeof name;
    char buffer[16];
    long server = NEED(syscall(SYS_socket, AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    TELL(syscall(SYS_bind, server, &name, sizeof name));
    TELL(syscall(SYS_listen, server, 128));
    NEED(syscall(SYS_getsockname, server, &name, &size));
    TELL(syscall(SYS_accept4, server, NULL, NULL, SOCK_CLOEXEC));
    long client = NEED(syscall(SYS_socket, AF_INET, SOCK_STREAM, IPPROTO_TCP));
    TELL(syscall(SYS_connect, client, &name, sizeof name));
    struct pollfd wanted = {(int)server, POLLIN, 0};
    TELL(syscall(SYS_poll, &wanted, 1, 5000));
    long accepted = NEED(syscall(SYS_accept4, server, &name, &size, SOCK_NONBLOCK));
    printf("non-blocking %d, closes on exec %d\n", !!(fcntl((int)accepted, F_GETFL) & O_NONBLOCK),
           !!(fcntl((int)accepted, F_GETFD) & FD_CLOEXEC));
    TELL(syscall(SYS_accept4, server, NULL, NULL, 0x40000));
    TELL(syscall(SYS_write, client, "hello", 5));
    wanted.fd = (int)accepted;
    TELL(syscall(SYS_poll, &wanted, 1, 5000));
    TELL(syscall(SYS_recvfrom, accepted, buffer, 16, 0, NULL, NULL));
    TELL(syscall(SYS_sendto, accepted, "bye", 3, MSG_NOSIGNAL, NULL, 0));
    TELL(syscall(SYS_shutdown, accepted, SHUT_WR));
    TELL(syscall(SYS_read, client, buffer, 16));
    TELL(syscall(SYS_read, client, buffer, 16));
    int twin = NEED(dup3((int)client, 200, O_CLOEXEC));
    close((int)client);
    TELL(syscall(SYS_write, twin, "twin", 4));
    TELL(syscall(SYS_close_range, 200, 200, 0));
    sleep_ms(20);
    TELL(syscall(SYS_read, accepted, buffer, 16));
    TELL(syscall(SYS_read, accepted, buffer, 16));
    return 0;
}
