module staddle.internal/node

go 1.26.7

require (
	staddle.internal/kit v0.0.0
	staddle.internal/proto v0.0.0
	staddle.internal/services/clusteraccess v0.0.0
	staddle.internal/services/presence v0.0.0
	staddle.internal/services/sandboxhost v0.0.0
	staddle.internal/services/storage v0.0.0
	staddle.internal/services/supervisor v0.0.0
)

replace (
	staddle.internal/kit => ../kit
	staddle.internal/proto => ../proto
	staddle.internal/services/clusteraccess => ../services/clusteraccess
	staddle.internal/services/presence => ../services/presence
	staddle.internal/services/sandboxhost => ../services/sandboxhost
	staddle.internal/services/storage => ../services/storage
	staddle.internal/services/supervisor => ../services/supervisor
)
