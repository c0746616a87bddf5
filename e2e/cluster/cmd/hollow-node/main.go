// A node without containers: the real kubelet over a container runtime that only pretends.
//
// Two processes make a node, so that the kubelet can be restarted while its containers go on:
//
//	hollow-node runtime --socket S --dir D     serves the CRI, records what containers were started with
//	hollow-node kubelet --socket S --dir D …   the kubelet code itself, as kubemark wires it
//
// What a container does follows from its environment and command; see runtime.go.
package main

import (
	"flag"
	"fmt"
	"os"
)

func main() {
	if len(os.Args) < 2 {
		fail(fmt.Errorf("say runtime or kubelet"))
	}
	flags := flag.NewFlagSet(os.Args[1], flag.ExitOnError)
	var node node
	flags.StringVar(&node.name, "name", "", "name of the node")
	flags.StringVar(&node.dir, "dir", "", "the node's folder: kubelet/ and env/ are made in it")
	flags.StringVar(&node.socket, "socket", "", "unix socket of the CRI")
	flags.StringVar(&node.kubeconfig, "kubeconfig", "", "of the kubelet")
	flags.IntVar(&node.port, "port", 0, "where the kubelet listens")
	flags.StringVar(&node.clientCA, "client-ca", "", "file with the CA of the kubelet's clients")
	flags.StringVar(&node.certificate, "certificate", "", "file with the kubelet's serving certificate")
	flags.StringVar(&node.key, "key", "", "file with its key")
	flags.DurationVar(&node.syncFrequency, "sync-frequency", 0, "how often the kubelet syncs each pod and so refreshes its volumes")
	_ = flags.Parse(os.Args[2:])
	switch os.Args[1] {
	case "runtime":
		fail(serveRuntime(node))
	case "kubelet":
		fail(runKubelet(node))
	default:
		fail(fmt.Errorf("%q is neither runtime nor kubelet", os.Args[1]))
	}
}

func fail(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "hollow-node:", err)
		os.Exit(1)
	}
}
