package main

import (
	"context"
	"encoding/json"
	"io/fs"
	"net"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/cri-client/pkg/fake"
	"k8s.io/kubelet/pkg/types"
)

// exitDelay is how long a container that ends by itself runs: the kubelet must be able to see it running.
const exitDelay = 200 * time.Millisecond

// runtime is the fake runtime of the CRI's own tests, with three things added: it records each container's
// environment and what it mounts by subPath, containers can end by themselves, and they can refuse to stop.
//
//	CRASH=1          exits 1
//	EXIT=n           exits n; so does the command `true`, with 0
//	IGNORE_TERM=1    stops only when its grace period is over
type runtime struct {
	*fake.RemoteRuntime
	node      node
	behaviour sync.Map // container id to behaviour
}

type behaviour struct {
	ends       bool
	code       int32
	ignoreTerm bool
}

func serveRuntime(node node) error {
	if err := os.RemoveAll(node.socket); err != nil {
		return err
	}
	listener, err := net.Listen("unix", node.socket)
	if err != nil {
		return err
	}
	remote := fake.NewFakeRemoteRuntime()
	remote.RuntimeService.FakeStatus = &cri.RuntimeStatus{Conditions: []*cri.RuntimeCondition{
		{Type: cri.RuntimeReady, Status: true},
		{Type: cri.NetworkReady, Status: true},
	}}
	// An image without a size counts as broken (cri-client, remote_image.go). Only one that is named without a tag ran all
	// the same: it is pulled as :latest, and asked for under a name that is not there (kuberuntime_container.go).
	remote.ImageService.SetFakeImageSize(1)
	server := grpc.NewServer()
	cri.RegisterRuntimeServiceServer(server, &runtime{RemoteRuntime: remote, node: node})
	cri.RegisterImageServiceServer(server, remote)
	return server.Serve(listener)
}

// recorded is one start of a container; the kubelet makes a new container for each attempt.
type recorded struct {
	Container string            `json:"container"`
	Attempt   uint32            `json:"attempt"`
	Created   time.Time         `json:"created"`
	Env       map[string]string `json:"env"`
	// Files are those of mounts with a subPath, by their path in the container.
	Files map[string][]byte `json:"files"`
}

func (r *runtime) CreateContainer(ctx context.Context, request *cri.CreateContainerRequest) (*cri.CreateContainerResponse, error) {
	config := request.GetConfig()
	pod := config.GetLabels()[types.KubernetesPodUIDLabel]
	// First: where this fails there is no container, and the kubelet tries again.
	files, err := subPathFiles(filepath.Join(r.node.kubeletDir(), "pods", pod, "volumes"), config.GetMounts())
	if err != nil {
		return nil, err
	}
	response, err := r.RemoteRuntime.CreateContainer(ctx, request)
	if err != nil {
		return nil, err
	}
	env := environment(config)
	r.behaviour.Store(response.GetContainerId(), behaviourOf(env, slices.Concat(config.GetCommand(), config.GetArgs())))
	record := recorded{
		Container: response.GetContainerId(),
		Attempt:   config.GetMetadata().GetAttempt(),
		Created:   time.Now().UTC(),
		Env:       env,
		Files:     files,
	}
	return response, write(filepath.Join(r.node.dir, "env", pod), config.GetMetadata().GetName()+".json", record)
}

func (r *runtime) StartContainer(ctx context.Context, request *cri.StartContainerRequest) (*cri.StartContainerResponse, error) {
	response, err := r.RemoteRuntime.StartContainer(ctx, request)
	if err != nil {
		return nil, err
	}
	id := request.GetContainerId()
	if does := r.does(id); does.ends {
		time.AfterFunc(exitDelay, func() { r.exit(id, does.code) })
	}
	return response, nil
}

func (r *runtime) StopContainer(ctx context.Context, request *cri.StopContainerRequest) (*cri.StopContainerResponse, error) {
	if r.does(request.GetContainerId()).ignoreTerm {
		select {
		case <-time.After(time.Duration(request.GetTimeout()) * time.Second):
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	return r.RemoteRuntime.StopContainer(ctx, request)
}

func (r *runtime) RemoveContainer(ctx context.Context, request *cri.RemoveContainerRequest) (*cri.RemoveContainerResponse, error) {
	r.behaviour.Delete(request.GetContainerId())
	return r.RemoteRuntime.RemoveContainer(ctx, request)
}

func (r *runtime) does(id string) behaviour {
	does, _ := r.behaviour.Load(id)
	known, _ := does.(behaviour)
	return known
}

func (r *runtime) exit(id string, code int32) {
	service := r.RuntimeService
	service.Lock()
	defer service.Unlock()
	if container, ok := service.Containers[id]; ok && container.State == cri.ContainerState_CONTAINER_RUNNING {
		container.State = cri.ContainerState_CONTAINER_EXITED
		container.ExitCode = code
		container.FinishedAt = time.Now().UnixNano()
	}
}

func behaviourOf(env map[string]string, command []string) behaviour {
	does := behaviour{ignoreTerm: env["IGNORE_TERM"] == "1"}
	if env["CRASH"] == "1" {
		does.ends, does.code = true, 1
	} else if code, err := strconv.ParseInt(env["EXIT"], 10, 32); err == nil {
		does.ends, does.code = true, int32(code)
	} else {
		does.ends = slices.Equal(command, []string{"true"})
	}
	return does
}

func environment(config *cri.ContainerConfig) map[string]string {
	env := map[string]string{}
	for _, pair := range config.GetEnvs() {
		env[pair.GetKey()] = string(pair.GetValue())
	}
	return env
}

// subPathFiles are the files that mounts with a subPath hold now, by their path in the container. A real runtime binds what
// a path leads to at this moment, and the kubelet never writes into a file again but makes another one (atomic_writer.go):
// the container goes on with these.
func subPathFiles(volumes string, mounts []*cri.Mount) (map[string][]byte, error) {
	files := map[string][]byte{}
	for _, mount := range mounts {
		// <volumes>/<plugin>/<volume> is a whole volume (kubelet_getters.go, getPodVolumeDir), and what is below it a subPath.
		below, ok := strings.CutPrefix(mount.GetHostPath(), volumes+"/")
		if !ok || strings.Count(below, "/") < 2 {
			continue
		}
		// A file of a ConfigMap is a link into ..data, and so is a directory.
		root, err := filepath.EvalSymlinks(mount.GetHostPath())
		if err != nil {
			return nil, err
		}
		err = filepath.WalkDir(root, func(file string, entry fs.DirEntry, err error) error {
			if err != nil || !entry.Type().IsRegular() {
				return err
			}
			content, err := os.ReadFile(file)
			files[path.Join(mount.GetContainerPath(), strings.TrimPrefix(file, root))] = content
			return err
		})
		if err != nil {
			return nil, err
		}
	}
	return files, nil
}

// write replaces the file in one step: readers never see half of it. Only its owner can read it: it may hold secrets.
func write(dir, name string, value any) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	text, err := json.Marshal(value)
	if err != nil {
		return err
	}
	temporary := filepath.Join(dir, "."+name)
	if err := os.WriteFile(temporary, text, 0o600); err != nil {
		return err
	}
	return os.Rename(temporary, filepath.Join(dir, name))
}
