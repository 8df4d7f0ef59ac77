// listen.cpp - rank 0's listening socket, name resolution, this machine's addresses.
#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "protocol.h"

std::vector<Address> resolve(const std::string& host, int port, std::string* why) {
    addrinfo hints{}, *all = nullptr;
    hints.ai_socktype = SOCK_STREAM;
    hints.ai_flags = AI_NUMERICSERV;
    std::vector<Address> result;
    if (int e = getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &all)) {
        *why = "the name " + host + ": " + gai_strerror(e);
        return result;
    }
    for (addrinfo* a = all; a; a = a->ai_next) {
        result.emplace_back();
        memcpy(&result.back().s, a->ai_addr, a->ai_addrlen);
        result.back().size = a->ai_addrlen;
    }
    freeaddrinfo(all);
    return result;
}
namespace {
std::vector<Address> every_address(int port) {
    Address six, four;
    auto* a = reinterpret_cast<sockaddr_in6*>(&six.s);
    auto* b = reinterpret_cast<sockaddr_in*>(&four.s);
    a->sin6_family = AF_INET6, a->sin6_port = htons(uint16_t(port)), six.size = sizeof *a;
    b->sin_family = AF_INET, b->sin_port = htons(uint16_t(port)), four.size = sizeof *b;
    return {six, four};
}
int listen_at(const Address& a) {    // -1: errno
    const int fd = socket(a.s.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0), on = 1, off = 0;
    if (fd < 0) return -1;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (a.s.ss_family == AF_INET6) setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
    if (!bind(fd, reinterpret_cast<const sockaddr*>(&a.s), a.size) && !listen(fd, 4096)) return fd;
    const int e = errno;
    close(fd);
    return errno = e, -1;
}
}    // namespace

Result<Listener> Listener::open(const std::string& host, int port) {
    std::string why;
    Listener l;
    int error = EADDRNOTAVAIL;
    for (const Address& a : host.empty() ? every_address(port) : resolve(host, port, &why)) {
        if ((l.fd = listen_at(a)) >= 0) break;
        error = errno;
        if (error == EADDRINUSE || error == EACCES) break;    // reported for IPv6; IPv4 alone would hide it
    }
    if (l.fd < 0) {
        const std::string text = why.empty() ? strerror(error) : why;
        const char* advice = error == EADDRINUSE ? "another process has it: choose another one, or end that"
                             : error == EACCES   ? "choose one from 1024 on"
                                                 : "rank 0 runs on the machine that has this address";
        return fail(Exit::peer, "rank 0 cannot listen on port %d%s%s: %s (%s)", port, host.empty() ? "" : " of ",
                    host.c_str(), text.c_str(), advice);
    }
    Address own;
    own.size = sizeof own.s;
    CHECK(!getsockname(l.fd, reinterpret_cast<sockaddr*>(&own.s), &own.size));
    l.port = ntohs(own.s.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6*>(&own.s)->sin6_port
                                               : reinterpret_cast<sockaddr_in*>(&own.s)->sin_port);
    return l;
}

std::string Listener::addresses() {
    std::string four, six;
    ifaddrs* all = nullptr;
    if (getifaddrs(&all)) return "127.0.0.1";
    for (ifaddrs* i = all; i; i = i->ifa_next) {
        if (!i->ifa_addr || !(i->ifa_flags & IFF_UP) || (i->ifa_flags & IFF_LOOPBACK)) continue;
        char text[INET6_ADDRSTRLEN];
        if (i->ifa_addr->sa_family == AF_INET) {
            auto* a = reinterpret_cast<sockaddr_in*>(i->ifa_addr);
            four += std::string(inet_ntop(AF_INET, &a->sin_addr, text, sizeof text)) + ",";
        } else if (i->ifa_addr->sa_family == AF_INET6) {
            auto* a = reinterpret_cast<sockaddr_in6*>(i->ifa_addr);
            if (IN6_IS_ADDR_LINKLOCAL(&a->sin6_addr)) continue;    // valid on one link alone
            six += std::string(inet_ntop(AF_INET6, &a->sin6_addr, text, sizeof text)) + ",";
        }
    }
    freeifaddrs(all);
    return four + six + "127.0.0.1";
}
