import boto3
import stripe
from django.db import transaction

bucket = boto3.client("s3")
orders = boto3.resource("dynamodb").Table("orders")


def pay(request):
    with transaction.atomic():
        stripe.Charge.create(amount=1, currency="eur")  # expect: GL214
        stripe.checkout.Session.retrieve("x")  # expect: GL214
        bucket.put_object(Bucket="b", Key="k", Body=b"")  # expect: GL214
        orders.put_item(Item={})  # expect: GL214
        boto3.client("sqs").send_message(QueueUrl="q", MessageBody="")  # expect: GL214
        boto3.resource("s3").Bucket("b")  # not: GL214
        url = bucket.generate_presigned_url("get_object")  # not: GL214
        stripe.api_key = "k"
    stripe.Charge.create(amount=1, currency="eur")  # not: GL214
    return url
