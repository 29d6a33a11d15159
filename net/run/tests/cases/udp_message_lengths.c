/* Lengths of pieces that no memory has are refused, whatever their sum. */
#include "_case.h"

int main(void)
{
    int server = bound(SOCK_DGRAM), client = bound(SOCK_DGRAM);
    char buffer[8] = "datagram";
    struct sockaddr_in to = name_of(server);
    struct sockaddr_storage name;
    struct iovec pieces[2] = {{buffer, 1}, {buffer, 1}};
    struct msghdr out = {&to, sizeof to, pieces, 2, NULL, 0, 0};
    struct msghdr in = {&name, sizeof name, pieces, 2, NULL, 0, 0};
    TELL(sendmsg(client, &out, 0));
    TELL(recvmsg(server, &in, 0));
    pieces[1].iov_len = SIZE_MAX;
    TELL(sendmsg(client, &out, 0));
    TELL(recvmsg(server, &in, MSG_DONTWAIT));
    pieces[1].iov_len = (size_t)1 << 63;
    TELL(sendmsg(client, &out, 0));
    /* The socket is served as before. */
    pieces[1].iov_len = 1;
    TELL(sendmsg(client, &out, 0));
    TELL(recvmsg(server, &in, 0));
    return 0;
}
