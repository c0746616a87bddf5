package main

import (
	"context"
	"crypto/tls"
	"net"
	"os"
	"path/filepath"
	"time"

	"go.opentelemetry.io/otel/trace/noop"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	remote "k8s.io/cri-client/pkg"
	"k8s.io/kubernetes/cmd/kubelet/app"
	kubeletconfig "k8s.io/kubernetes/pkg/kubelet/apis/config"
	cadvisortest "k8s.io/kubernetes/pkg/kubelet/cadvisor/testing"
	"k8s.io/kubernetes/pkg/kubelet/cm"
	"k8s.io/kubernetes/pkg/kubelet/server"
	"k8s.io/kubernetes/pkg/kubemark"
	"k8s.io/kubernetes/pkg/volume/util/hostutil"
	"k8s.io/kubernetes/pkg/volume/util/subpath"
)

type node struct {
	name, dir, socket, kubeconfig string
	clientCA, certificate, key    string
	port                          int
	syncFrequency                 time.Duration
}

// kubeletDir is the kubelet's root directory.
func (n node) kubeletDir() string {
	return filepath.Join(n.dir, "kubelet")
}

func runKubelet(node node) error {
	ctx := context.Background()
	config, err := clientcmd.BuildConfigFromFlags("", node.kubeconfig)
	if err != nil {
		return err
	}
	config.QPS, config.Burst = 100, 200
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	// Leases must not wait behind pod updates.
	config.QPS = -1
	heartbeats, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	if err := awaitListener(ctx, node.socket); err != nil {
		return err
	}
	endpoint := "unix://" + node.socket
	runtimeService, err := remote.NewRemoteRuntimeService(ctx, endpoint, 15*time.Second, noop.NewTracerProvider(), false)
	if err != nil {
		return err
	}
	imageService, err := remote.NewRemoteImageService(ctx, endpoint, 15*time.Second, noop.NewTracerProvider(), false)
	if err != nil {
		return err
	}
	flags, kubelet := kubemark.GetHollowKubeletConfig(&kubemark.HollowKubeletOptions{
		NodeName: node.name, KubeletPort: node.port, MaxPods: 500,
	})
	// kubemark makes folders in /tmp, whatever TMPDIR says, and leaves them there.
	if err := os.RemoveAll(flags.RootDirectory); err != nil {
		return err
	}
	flags.RootDirectory = node.kubeletDir()
	kubelet.StaticPodPath = filepath.Join(node.dir, "static")
	kubelet.PodLogsDir = filepath.Join(node.dir, "logs")
	for _, dir := range []string{kubelet.StaticPodPath, kubelet.PodLogsDir} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return err
		}
	}
	// The address that its Node tells of is not loopback. So it asks who comes, as everywhere, and the API server
	// whether they may.
	kubelet.Authentication.Anonymous.Enabled = false
	kubelet.Authentication.Webhook.Enabled = true
	kubelet.Authentication.X509.ClientCAFile = node.clientCA
	kubelet.Authorization.Mode = kubeletconfig.KubeletAuthorizationModeWebhook
	auth, runAuth, err := app.BuildAuth(types.NodeName(node.name), client, *kubelet)
	if err != nil {
		return err
	}
	runAuth(ctx.Done())
	kubelet.SyncFrequency.Duration = node.syncFrequency
	kubelet.SerializeImagePulls = false
	hollow := kubemark.NewHollowKubelet(flags, kubelet, client, heartbeats,
		&cadvisortest.Fake{NodeName: node.name}, imageService, runtimeService, cm.NewStubContainerManager())
	// Without one the kubelet makes the real one; kubemark's calls every container ready.
	hollow.KubeletDeps.ProbeManager = nil
	hollow.KubeletDeps.Auth = auth
	hollow.KubeletDeps.TLSOptions = &server.TLSOptions{
		CertFile: node.certificate, KeyFile: node.key, ClientCAFile: node.clientCA, MinVersion: tls.VersionTLS12,
	}
	// To kubemark's no path exists and none has a mode: then no container with a subPath can be made
	// (kubelet_pods.go, makeMounts).
	hollow.KubeletDeps.HostUtil = hostUtil{hostutil.NewHostUtil()}
	hollow.KubeletDeps.Subpather = subpather{subpath.New(hollow.KubeletDeps.Mounter)}
	hollow.Run(ctx)
	return nil
}

// hostUtil is the real one, which looks at paths, without what needs root: the kubelet wants its root directory on a
// shared mount and would make one (kubelet.go, setupDataDirs).
type hostUtil struct{ *hostutil.HostUtil }

func (hostUtil) MakeRShared(string) error { return nil }

// subpather is the real one without the bind mount, which needs root. What the path leads to when a container is
// created is for the runtime to keep. A subPath that is not in the volume becomes an empty directory, as everywhere.
type subpather struct{ subpath.Interface }

func (subpather) PrepareSafeSubpath(path subpath.Subpath) (string, func(), error) {
	return path.Path, nil, nil
}

// awaitListener gives the node's runtime, which starts at the same time, a while to listen.
func awaitListener(ctx context.Context, socket string) error {
	return wait.PollUntilContextTimeout(ctx, 20*time.Millisecond, 30*time.Second, true, func(context.Context) (bool, error) {
		connection, err := net.Dial("unix", socket)
		if err != nil {
			return false, nil
		}
		return true, connection.Close()
	})
}
