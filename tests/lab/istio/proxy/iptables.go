package main

import (
	"errors"
	"flag"
	"fmt"
	"strconv"
	"strings"

	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// redirect is what istio-init is asked for.
type redirect struct {
	outbound, inbound uint16
	uid               uint32
	notInbound        []uint16
}

// iptables redirects the pod's TCP to the proxy: all that leaves the pod, except the proxy's own, to the
// outbound port; all that arrives, except for the named ports, to the inbound port. Traffic on loopback
// stays as it is. It speaks nf_tables over netlink, for the image has neither iptables nor a shell.
func iptables(args []string) error {
	r, err := readRedirect(args)
	if err != nil {
		return err
	}
	kernel, err := nftables.New()
	if err != nil {
		return err
	}
	table := kernel.AddTable(&nftables.Table{Family: nftables.TableFamilyIPv4, Name: "istio"})
	// A container that is started again finds what it left.
	kernel.FlushTable(table)
	chain := func(name string, hook *nftables.ChainHook) func(...[]expr.Any) {
		chain := kernel.AddChain(&nftables.Chain{
			Name: name, Table: table, Type: nftables.ChainTypeNAT,
			Hooknum: hook, Priority: nftables.ChainPriorityNATDest,
		})
		return func(parts ...[]expr.Any) {
			var all []expr.Any
			for _, part := range parts {
				all = append(all, part...)
			}
			kernel.AddRule(&nftables.Rule{Table: table, Chain: chain, Exprs: all})
		}
	}
	output := chain("output", nftables.ChainHookOutput)
	output(is(expr.MetaKeySKUID, binaryutil.NativeEndian.PutUint32(r.uid)), leave)
	output(is(expr.MetaKeySKGID, binaryutil.NativeEndian.PutUint32(r.uid)), leave)
	output(is(expr.MetaKeyOIFNAME, []byte("lo\x00")), leave)
	output(tcp, to(r.outbound))
	arriving := chain("prerouting", nftables.ChainHookPrerouting)
	for _, port := range r.notInbound {
		arriving(tcp, port16(port), leave)
	}
	arriving(tcp, to(r.inbound))
	if err := kernel.Flush(); err != nil {
		return fmt.Errorf("nf_tables: %w", err)
	}
	fmt.Printf("outbound TCP goes to %d, inbound to %d, except for uid %d and ports %v\n",
		r.outbound, r.inbound, r.uid, r.notInbound)
	return nil
}

var (
	leave = []expr.Any{&expr.Verdict{Kind: expr.VerdictReturn}}
	tcp   = is(expr.MetaKeyL4PROTO, []byte{unix.IPPROTO_TCP})
)

// is compares a property of the packet.
func is(key expr.MetaKey, value []byte) []expr.Any {
	return []expr.Any{
		&expr.Meta{Key: key, Register: 1},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: value},
	}
}

// port16 compares the destination port in the TCP header.
func port16(port uint16) []expr.Any {
	return []expr.Any{
		&expr.Payload{DestRegister: 1, Base: expr.PayloadBaseTransportHeader, Offset: 2, Len: 2},
		&expr.Cmp{Op: expr.CmpOpEq, Register: 1, Data: binaryutil.BigEndian.PutUint16(port)},
	}
}

func to(port uint16) []expr.Any {
	return []expr.Any{
		&expr.Immediate{Register: 1, Data: binaryutil.BigEndian.PutUint16(port)},
		&expr.Redir{RegisterProtoMin: 1},
	}
}

// readRedirect understands the arguments that the injector gives to istio-init, and refuses a wish that it
// would not fulfil.
func readRedirect(args []string) (r redirect, err error) {
	flags := flag.NewFlagSet("istio-iptables", flag.ContinueOnError)
	outbound := flags.Uint("p", 15001, "port for outbound traffic")
	inbound := flags.Uint("z", 15006, "port for inbound traffic")
	uid := flags.Uint("u", 1337, "user and group of the proxy")
	mode := flags.String("m", "REDIRECT", "interception mode")
	included := flags.String("i", "*", "outbound address ranges")
	excluded := flags.String("x", "", "outbound address ranges left alone")
	ports := flags.String("b", "*", "inbound ports")
	notInbound := flags.String("d", "", "inbound ports left alone")
	flags.String("log_output_level", "", "ignored")
	if err := flags.Parse(args); err != nil {
		return r, err
	}
	if *mode != "REDIRECT" || *included != "*" || *excluded != "" || *ports != "*" {
		return r, errors.New("this stand-in only knows -m REDIRECT -i * -x '' -b *")
	}
	r = redirect{outbound: uint16(*outbound), inbound: uint16(*inbound), uid: uint32(*uid)}
	for _, text := range strings.FieldsFunc(*notInbound, func(c rune) bool { return c == ',' }) {
		port, err := strconv.ParseUint(text, 10, 16)
		if err != nil {
			return r, fmt.Errorf("-d: %q: expected port numbers", text)
		}
		r.notInbound = append(r.notInbound, uint16(port))
	}
	return r, nil
}
