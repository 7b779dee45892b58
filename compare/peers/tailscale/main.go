// Program tailscale-control is a coordination server for one comparison: Tailscale's own server for tests, with a relay
// and a STUN responder beside it. It approves the routes that the gateway advertises. Nothing of it is a security
// boundary: every node may log in.
package main

import (
	"crypto/tls"
	"flag"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"time"

	"tailscale.com/derp/derpserver"
	"tailscale.com/net/stun"
	"tailscale.com/tailcfg"
	"tailscale.com/tstest/integration/testcontrol"
	"tailscale.com/types/key"
	"tailscale.com/types/logger"
)

const (
	controlPort = ":8080"
	relayPort   = 8443
	stunPort    = 3478
)

func main() {
	address := flag.String("address", "", "IPv4 address to listen on")
	router := flag.String("router", "", "host name of the node that may advertise the route")
	route := flag.String("route", "", "the route, as a prefix")
	flag.Parse()
	prefix, err := netip.ParsePrefix(*route)
	if err != nil {
		log.Fatalf("-route: %v", err)
	}
	if err := relay(*address); err != nil {
		log.Fatalf("relay: %v", err)
	}
	if err := answerSTUN(*address); err != nil {
		log.Fatalf("STUN: %v", err)
	}
	node := &tailcfg.DERPNode{
		Name: "1", RegionID: 1, HostName: *address, IPv4: *address, IPv6: "none",
		STUNPort: stunPort, STUNTestIP: *address, DERPPort: relayPort, InsecureForTests: true,
	}
	region := &tailcfg.DERPRegion{RegionID: 1, RegionCode: "local", Nodes: []*tailcfg.DERPNode{node}}
	server := &testcontrol.Server{
		Logf:            logger.Discard,
		DERPMap:         &tailcfg.DERPMap{Regions: map[int]*tailcfg.DERPRegion{1: region}},
		ExplicitBaseURL: "http://" + *address + controlPort,
		AllOnline:       true,
	}
	go approve(server, *router, prefix)
	log.Fatal(http.ListenAndServe(*address+controlPort, server))
}

// relay starts a DERP server with a certificate that nobody checks.
func relay(address string) error {
	listener, err := net.Listen("tcp", net.JoinHostPort(address, "8443"))
	if err != nil {
		return err
	}
	server := httptest.NewUnstartedServer(derpserver.Handler(derpserver.New(key.NewNode(), logger.Discard)))
	if err := server.Listener.Close(); err != nil {
		return err
	}
	server.Listener = listener
	// DERP upgrades connections of HTTP/1, so HTTP/2 is off.
	server.Config.TLSNextProto = map[string]func(*http.Server, *tls.Conn, http.Handler){}
	server.StartTLS()
	return nil
}

func answerSTUN(address string) error {
	socket, err := net.ListenPacket("udp4", net.JoinHostPort(address, "3478"))
	if err != nil {
		return err
	}
	go func() {
		datagram := make([]byte, 1500)
		for {
			length, from, err := socket.ReadFrom(datagram)
			if err != nil {
				return
			}
			if request, err := stun.ParseBindingRequest(datagram[:length]); err == nil {
				_, _ = socket.WriteTo(stun.Response(request, from.(*net.UDPAddr).AddrPort()), from)
			}
		}
	}()
	return nil
}

// approve gives the route to every node with this host name, as an administrator would.
func approve(server *testcontrol.Server, router string, route netip.Prefix) {
	approved := map[key.NodePublic]bool{}
	for range time.Tick(20 * time.Millisecond) {
		for _, node := range server.AllNodes() {
			if !approved[node.Key] && node.Hostinfo.Valid() && node.Hostinfo.Hostname() == router {
				approved[node.Key] = true
				server.SetSubnetRoutes(node.Key, []netip.Prefix{route})
			}
		}
	}
}
