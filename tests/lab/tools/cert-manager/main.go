// cert-manager as one process: its controllers of certificates, with issuers that sign by themselves
// or with an authority, and its CA injector.
//
// Since 1.12 its programs are modules of their own, which are in no registry. This starts the same
// controllers as theirs (cmd/controller/app/controller.go Run, cmd/cainjector/app/cainjector.go),
// but for ACME, Vault and Venafi, and elects no leader.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"time"

	cmscheme "github.com/cert-manager/cert-manager/pkg/client/clientset/versioned/scheme"
	"github.com/cert-manager/cert-manager/pkg/controller"
	"github.com/cert-manager/cert-manager/pkg/controller/cainjector"
	_ "github.com/cert-manager/cert-manager/pkg/controller/certificaterequests/approver"
	_ "github.com/cert-manager/cert-manager/pkg/controller/certificaterequests/ca"
	_ "github.com/cert-manager/cert-manager/pkg/controller/certificaterequests/selfsigned"
	_ "github.com/cert-manager/cert-manager/pkg/controller/certificates/issuing"
	_ "github.com/cert-manager/cert-manager/pkg/controller/certificates/keymanager"
	_ "github.com/cert-manager/cert-manager/pkg/controller/certificates/readiness"
	_ "github.com/cert-manager/cert-manager/pkg/controller/certificates/requestmanager"
	_ "github.com/cert-manager/cert-manager/pkg/controller/certificates/revisionmanager"
	_ "github.com/cert-manager/cert-manager/pkg/controller/certificates/trigger"
	_ "github.com/cert-manager/cert-manager/pkg/controller/issuers"
	_ "github.com/cert-manager/cert-manager/pkg/issuer/ca"
	_ "github.com/cert-manager/cert-manager/pkg/issuer/selfsigned"
	"github.com/cert-manager/cert-manager/pkg/util"
	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/runtime"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	kscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"
	metrics "sigs.k8s.io/controller-runtime/pkg/metrics/server"
)

func main() {
	flag.Parse() // controller-runtime has a flag `kubeconfig`.
	ctrl.SetLogger(klog.Background())
	group, ctx := errgroup.WithContext(ctrl.SetupSignalHandler())
	group.Go(func() error { return control(ctx, flag.Lookup("kubeconfig").Value.String()) })
	group.Go(func() error { return inject(ctx) })
	if err := group.Wait(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// control runs the controllers that the imports above have registered.
func control(ctx context.Context, kubeconfig string) error {
	factory, err := controller.NewContextFactory(ctx, controller.ContextOptions{
		Kubeconfig: kubeconfig,
		CertificateOptions: controller.CertificateOptions{ // As their defaults are.
			CertificateRequestMinimumBackoffDuration: time.Hour,
			CertificateRequestMaximumBackoffDuration: 32 * time.Hour,
		},
	})
	if err != nil {
		return err
	}
	group, ctx := errgroup.WithContext(ctx)
	for name, construct := range controller.Known() {
		made, err := construct(factory)
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		group.Go(func() error { return made.Run(1, ctx) })
	}
	informed, err := factory.Build()
	if err != nil {
		return err
	}
	informed.SharedInformerFactory.Start(ctx.Done())
	informed.KubeSharedInformerFactory.Start(ctx.Done())
	return group.Wait()
}

// inject writes authorities into webhook configurations.
func inject(ctx context.Context) error {
	scheme := runtime.NewScheme()
	utilruntime.Must(kscheme.AddToScheme(scheme))
	utilruntime.Must(cmscheme.AddToScheme(scheme))
	none := metrics.Options{BindAddress: "0"}
	// Its name is that of the manager of the fields that it applies.
	config := util.RestConfigWithUserAgent(ctrl.GetConfigOrDie(), "cainjector")
	manager, err := ctrl.NewManager(config, ctrl.Options{Scheme: scheme, Metrics: none})
	if err != nil {
		return err
	}
	err = cainjector.RegisterAllInjectors(ctx, manager, cainjector.SetupOptions{
		EnableCertificatesDataSource: true,
		EnabledReconcilersFor: map[string]bool{
			cainjector.MutatingWebhookConfigurationName:   true,
			cainjector.ValidatingWebhookConfigurationName: true,
		},
	})
	if err != nil {
		return err
	}
	return manager.Start(ctx)
}
